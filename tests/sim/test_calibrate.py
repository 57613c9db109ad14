from __future__ import annotations

import random
from dataclasses import replace

import pytest
import torch

from servelib.errors import InvalidRequestError
from servelib.model.config import REFERENCE
from servelib.model.linear import linear
from servelib.sim import ceilings
from servelib.sim.calibrate import calibrate
from servelib.sim.ceilings import launch_overhead, measure_ceilings
from servelib.sim.fit import Sample
from servelib.sim.machines import machine_named
from servelib.sim.roofline import RooflineCost

START = RooflineCost(REFERENCE, machine_named("cpu"))
TRUE = replace(START, overhead=4e-4, compute=0.7, memory=0.4)


def samples(truth: RooflineCost, *, noise: float, requests: int = 24) -> list[Sample]:
    rng, found = random.Random(3), []
    for i in range(requests):
        prompt = rng.randrange(16, 600)
        for new, cached in [(prompt, 0), *((1, prompt + k) for k in range(10)), (1, 1500 + i), (8, prompt)]:
            found.append(Sample(str(i), new, cached, truth.seconds(new, cached) * rng.gauss(1.0, noise)))
    return found


def test_a_known_cost_is_found_again():
    found = calibrate(START, samples(TRUE, noise=0.0))
    assert found.median_error < 1e-3
    assert found.total_error == pytest.approx(0.0, abs=1e-3)
    assert found.cost.compute == pytest.approx(0.7, rel=0.01)
    assert found.cost.overhead == pytest.approx(4e-4, rel=0.1)
    assert found.cost.provenance.startswith("roofline of ")


def test_a_measured_overhead_is_kept():
    found = calibrate(replace(START, overhead=4e-4), samples(TRUE, noise=0.0)).cost
    assert found.overhead == 4e-4
    assert (found.compute, found.memory) == pytest.approx((0.7, 0.4), rel=1e-3)


def test_noise_is_the_error_and_an_interruption_does_not_pull():
    noisy = samples(TRUE, noise=0.05)
    noisy[20] = replace(noisy[20], seconds=1.0)
    found = calibrate(START, noisy)
    assert 0.02 < found.median_error < 0.05
    assert found.cost.compute == pytest.approx(0.7, rel=0.05)
    assert found.held_out + len([s for s in noisy if int(s.request_id) % 4 != 3]) == found.samples


def test_the_worst_held_out_step_is_named():
    noisy = samples(TRUE, noise=0.01)
    odd = next(i for i, s in enumerate(noisy) if s.request_id == "3")  # a fourth request: held out
    noisy[odd] = replace(noisy[odd], seconds=10.0)
    worst, predicted = calibrate(START, noisy).worst
    assert worst == noisy[odd]
    assert predicted < 1.0


def test_too_few_requests_are_refused():
    with pytest.raises(InvalidRequestError, match="at least 8"):
        calibrate(START, samples(TRUE, noise=0.0, requests=7))


def test_ceilings_are_rates_and_make_a_machine():
    found = measure_ceilings(products=(16, 32), reads=(1 << 12, 1 << 16), repeats=3)
    assert [c.size for c in found.products] == [16, 32]
    assert [c.size for c in found.reads] == [1 << 12, 1 << 16]
    for ceiling in (*found.products, *found.reads):
        assert 0 < ceiling.slowest <= ceiling.rate <= ceiling.fastest
    machine = found.machine(held=5000.0)
    assert machine.peak("float32") == max(c.rate for c in found.products)
    assert machine.bandwidth.value == found.reads[-1].rate
    assert machine.bytes_per_second(5000.0) == found.reads[0].rate  # stays in the cache
    assert "torch" in machine.bandwidth.source


def test_the_ceiling_is_of_the_product_that_a_step_uses(monkeypatch: pytest.MonkeyPatch):
    """Another kernel's would be one that a step can pass, or never come near."""
    seen: list[tuple[torch.Size, torch.Size]] = []

    def watched(x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
        seen.append((x.shape, weight.shape))
        return linear(x, weight)

    monkeypatch.setattr(ceilings, "linear", watched)
    measure_ceilings(products=(16, 32), reads=(1 << 12,), repeats=1)
    assert set(seen) == {((side, side), (side, side)) for side in (16, 32)}


def test_launching_takes_some_time():
    assert 0 < launch_overhead(replace(REFERENCE, layers=1, context=64), repeats=3) < 1.0
