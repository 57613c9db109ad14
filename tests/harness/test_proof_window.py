"""Proof 8: a settled run is left as it is, a warming one is cut, an overloaded one is called so."""

from __future__ import annotations

import math
import random

import pytest
from queues import SingleServer, exponential, mm1_run
from worlds import record, run_of

from servelib.clock import VirtualClock
from servelib.harness.arrivals import Constant, Poisson
from servelib.harness.drive import drive
from servelib.harness.lengths import Fixed
from servelib.harness.trace import make_trace
from servelib.harness.window import MINIMUM, Verdict, little_law, mser5, steady_window


def served(rate: float, n: int, seed: int = 3):
    trace = make_trace(Poisson(rate), n, prompt=Fixed(1), output=Fixed(1), seed=seed)
    clock = VirtualClock()
    return drive(SingleServer(clock, exponential(1.0)), trace, clock)


@pytest.mark.parametrize("rho", [0.3, 0.6, 0.8])
def test_trimming_a_stationary_run_changes_throughput_by_under_one_per_cent(rho):
    run = served(rho, 6000)
    window = steady_window(run)
    assert window.verdict is Verdict.STEADY
    whole = sum(r.output_tokens for r in run.requests) / run.duration
    assert window.output_tokens_per_second == pytest.approx(whole, rel=0.01)
    assert window.end == run.requests[-1].scheduled <= run.duration


@pytest.mark.parametrize("rho", [1.3, 2.0])
def test_an_overloaded_run_has_no_steady_state(rho):
    window = steady_window(served(rho, 500))
    assert window.verdict is Verdict.NO_STEADY_STATE
    assert (window.start, window.warmup_requests) == (0.0, 0)
    assert window.little.error == pytest.approx(rho - 1, rel=0.3)


def test_how_often_the_verdict_errs():
    """The rates that the module states, over 200 runs of 500 requests each."""
    unsteady = {
        rho: sum(
            steady_window(mm1_run(rho, 500, seed)).verdict is Verdict.NO_STEADY_STATE for seed in range(200)
        )
        for rho in (0.3, 0.8, 1.3, 2.0)
    }
    assert unsteady[0.3] == 0
    assert unsteady[0.8] <= 3
    assert unsteady[1.3] >= 192
    assert unsteady[2.0] == 200


def test_a_warm_up_is_found_and_cut():
    """Latencies that fall from 5 s to 1 s over the first 200 of 1,000 requests."""
    rng = random.Random(1)
    latencies = [1 + 4 * max(0, 1 - i / 200) + rng.gauss(0, 0.1) for i in range(1000)]
    assert 150 <= mser5(latencies, 500) <= 220
    run = run_of(*(record([(i + y, 1)], scheduled=float(i)) for i, y in enumerate(latencies)))
    window = steady_window(run)
    assert window.verdict is Verdict.STEADY
    assert 150 <= window.warmup_requests <= 220
    assert window.start == window.warmup_requests


def test_mser_5_is_the_cut_that_makes_its_statistic_smallest():
    rng = random.Random(2)
    values = [rng.random() + (2 if i < 30 else 0) for i in range(200)]
    means = [sum(values[i : i + 5]) / 5 for i in range(0, 200, 5)]

    def statistic(cut: int) -> float:
        kept = means[cut:]
        mean = sum(kept) / len(kept)
        return sum((y - mean) ** 2 for y in kept) / len(kept) ** 2

    assert mser5(values, 200) == 5 * min(range(len(means) - 4), key=statistic) == 30


def test_little_s_law_is_exact_where_the_window_holds_every_request():
    run = served(0.6, 300)
    little = little_law(run.requests, 0.0, run.duration)
    assert little.error == pytest.approx(0.0, abs=1e-9)
    assert little.in_system == pytest.approx(little.arrival_rate * little.time_in_system)


@pytest.mark.parametrize("rho", [0.3, 0.6, 0.8])
def test_little_s_law_holds_in_a_steady_window(rho):
    assert abs(steady_window(served(rho, 4000)).little.error) < 0.02


def test_little_s_law_by_hand():
    """Two requests, 0-4 and 2-6, seen over 0-4: L = (4 + 2)/4, lambda = 2/4, W = 4."""
    little = little_law([record([(4.0, 1)]), record([(6.0, 1)], scheduled=2.0)], 0.0, 4.0)
    assert (little.in_system, little.arrival_rate, little.time_in_system) == (1.5, 0.5, 4.0)
    assert little.error == pytest.approx(1 / 3)


def test_too_short_all_at_once_and_nothing_served_are_not_judged():
    assert steady_window(served(0.5, MINIMUM - 1)).verdict is Verdict.TOO_SHORT
    once = run_of(*(record([(1.0 + i, 1)]) for i in range(200)))
    assert steady_window(once).verdict is Verdict.TOO_SHORT
    assert steady_window(once).output_tokens_per_second is None
    empty = steady_window(run_of())
    assert (empty.verdict, empty.little) == (Verdict.TOO_SHORT, None)


def test_equal_latencies_are_steady_from_the_start():
    trace = make_trace(Constant(1.0), 200, prompt=Fixed(1), output=Fixed(1))
    clock = VirtualClock()
    window = steady_window(drive(SingleServer(clock, lambda _: 0.5), trace, clock))
    assert (window.verdict, window.warmup_requests) == (Verdict.STEADY, 0)
    assert math.isclose(window.little.time_in_system, 0.5)


def test_sums_of_times_are_exact_so_that_every_python_gives_the_same_bytes():
    """``sum`` of ten tenths is below 1 up to Python 3.11, and 1 from 3.12 on."""
    found = little_law([record([(0.1, 1)]) for _ in range(10)], 0.0, 1.0)
    assert (found.in_system, found.time_in_system) == (1.0, 0.1)
