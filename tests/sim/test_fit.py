from __future__ import annotations

import random
from collections.abc import Sequence

import pytest

from servelib.clock import VirtualClock
from servelib.engine.registry import make_engine
from servelib.errors import InvalidRequestError
from servelib.harness.drive import drive
from servelib.harness.trace import REFERENCE_WORKLOAD
from servelib.model.config import REFERENCE
from servelib.sim.cost import StepCost
from servelib.sim.fit import Sample, fit, samples_from
from servelib.sim.model import CostedModel
from servelib.spans import Span, SpanLog, Stage

TRUE = StepCost(overhead=2e-3, per_token=1e-4, per_pair=3e-7, per_cached=2e-6)


def live_samples(cost: StepCost, engines: Sequence[str] = ("naive", "cached")) -> list[Sample]:
    """Steps of engines, as spans of a run in which each step costs exactly ``cost``."""
    found = []
    for name in engines:
        clock, spans = VirtualClock(), SpanLog()
        engine = make_engine(name, CostedModel(REFERENCE, cost, clock), clock, spans)
        drive(engine, REFERENCE_WORKLOAD.warmup(12), clock)
        found += samples_from(spans.spans(), prefix=f"{name}:")
    return found


def test_batches_are_samples_of_all_their_sequences():
    found = live_samples(TRUE, ["continuous"])
    assert max(len(sample.sequences) for sample in found) == 12
    for sample in found:
        assert sample.seconds == pytest.approx(TRUE.seconds_of(sample.sequences))
    whole = fit(live_samples(TRUE, ["naive", "cached", "continuous"]))
    both = whole.cost
    assert whole.batch_error is not None
    assert whole.batch_error < 1e-6
    for name in ("overhead", "per_token", "per_pair", "per_cached"):
        assert getattr(both, name) == pytest.approx(getattr(TRUE, name), rel=1e-4)


def test_a_known_cost_is_found_again():
    found = fit(live_samples(TRUE), provenance="a test")
    for name in ("overhead", "per_token", "per_pair", "per_cached"):
        assert getattr(found.cost, name) == pytest.approx(getattr(TRUE, name), rel=1e-4)
    assert found.median_error < 1e-6
    assert found.batch_error is None  # one sequence a step
    assert found.cost.provenance == "a test"
    assert 0 < found.held_out < found.samples


def test_noise_is_reported_as_error_on_steps_not_seen():
    rng = random.Random("noise")
    noisy = [
        Sample(s.request_id, s.new_tokens, s.cached_tokens, s.seconds * rng.uniform(0.8, 1.2))
        for s in live_samples(TRUE)
    ]
    found = fit(noisy)
    assert found.median_error == pytest.approx(0.10, abs=0.02)  # of a uniform +-20 %, the median is 10 %
    assert abs(found.total_error) < 0.05


def test_a_change_in_the_held_out_requests_alone_changes_no_coefficient():
    samples = live_samples(TRUE)
    fourth = sorted({s.request_id for s in samples}, key=[s.request_id for s in samples].index)[3]
    moved = [
        Sample(s.request_id, s.new_tokens, s.cached_tokens, s.seconds * (5 if s.request_id == fourth else 1))
        for s in samples
    ]
    assert fit(moved).cost == fit(samples).cost
    assert fit(moved).p90_error > fit(samples).p90_error


def test_no_coefficient_is_below_zero():
    shrinking = [Sample(str(i), n, 0, 1.0 / n) for i in range(8) for n in (1, 2, 4, 8)]
    cost = fit(shrinking).cost
    assert min(cost.overhead, cost.per_token, cost.per_pair, cost.per_cached) == 0.0


def test_a_step_is_a_model_span_and_the_sampling_after_it():
    spans = [
        Span("a", Stage.QUEUE, 0.0, 1.0),
        Span("a", Stage.PREFILL, 1.0, 2.0, 8, 0),
        Span("a", Stage.SAMPLE, 2.0, 2.25),
        Span("b", Stage.PREFILL, 2.5, 3.0, 4, 0),  # failed: it was never sampled
        Span("a", Stage.DECODE, 3.0, 3.5, 1, 8),
        Span("a", Stage.SAMPLE, 3.5, 3.75),
        Span("a", Stage.STREAM, 3.75, 9.0),
    ]
    assert samples_from(spans) == [Sample("a", 8, 0, 1.25), Sample("a", 1, 8, 0.75)]


def test_too_little_to_fit_is_refused():
    with pytest.raises(InvalidRequestError, match="at least 8"):
        fit([Sample("a", 1, 0, 1.0)])
