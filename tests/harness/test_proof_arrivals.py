"""Proof 1: drawn schedules follow their laws, and the checks that say so kill the known mistakes."""

from __future__ import annotations

import math
import random
from collections.abc import Callable
from itertools import pairwise
from statistics import fmean, pvariance

import pytest
from scipy import stats as scipy_stats

from servelib.harness.arrivals import Constant, Gamma, Poisson
from servelib.harness.trace import stream_rng
from servelib.harness.varying import Piecewise, Ramp

RATE, N, SCHEDULES = 20.0, 4000, 300
Generator = Callable[[int, int], list[float]]  # (requests, seed) -> times


def poisson(n: int, seed: int) -> list[float]:
    return Poisson(RATE).times(n, stream_rng(seed, "arrivals"))


def gaps_of(times: list[float]) -> list[float]:
    return [b - a for a, b in pairwise([0.0, *times])]


def counts_of(times: list[float], seconds: float) -> list[int]:
    counts = [0] * int(times[-1] / seconds)
    for time in times:
        if (cell := int(time / seconds)) < len(counts):
            counts[cell] += 1
    return counts


def gaps_are_exponential(make: Generator) -> bool:
    return scipy_stats.kstest(gaps_of(make(N, 1)), "expon", args=(0, 1 / RATE)).pvalue > 0.01


def gaps_vary_as_they_should(make: Generator) -> bool:
    gaps = gaps_of(make(N, 1))
    return abs(pvariance(gaps) / fmean(gaps) ** 2 - 1) < 0.12  # CV squared; its deviation is sqrt(8/N)


def counts_are_dispersed(make: Generator) -> bool:
    counts = counts_of(make(N, 1), 1.0)
    return abs(pvariance(counts) / fmean(counts) - 1) < 3 * math.sqrt(2 / len(counts))


def gaps_do_not_follow_each_other(make: Generator) -> bool:
    gaps = gaps_of(make(N, 1))
    return abs(scipy_stats.pearsonr(gaps[:-1], gaps[1:]).statistic) < 3 / math.sqrt(N)


def the_end_is_as_random_as_it_should_be(make: Generator) -> bool:
    """The 24th arrival follows the gamma law of shape 24, over many short schedules."""
    ends = [make(24, seed)[-1] for seed in range(SCHEDULES)]
    return scipy_stats.kstest(ends, "gamma", args=(24, 0, 1 / RATE)).pvalue > 0.01


CHECKS = [
    gaps_are_exponential,
    gaps_vary_as_they_should,
    counts_are_dispersed,
    gaps_do_not_follow_each_other,
    the_end_is_as_random_as_it_should_be,
]


@pytest.mark.parametrize("check", CHECKS)
def test_poisson_arrivals_pass(check):
    assert check(poisson)


# The mistakes: each was found in a tool that people use, or reported by one of its users.


def clipped_at_three_means(n: int, seed: int) -> list[float]:
    time, times = 0.0, []
    for gap in gaps_of(poisson(n, seed)):
        time += min(gap, 3 / RATE)
        times.append(time)
    return times


def rescaled_to_end_at_n_over_rate(n: int, seed: int) -> list[float]:
    times = poisson(n, seed)
    return [time * (n / RATE) / times[-1] for time in times]


def counted_second_by_second(n: int, seed: int) -> list[float]:
    """A Poisson count for each second, spread evenly over it."""
    rng, times, second = random.Random(seed), list[float](), 0
    while len(times) < n:
        count = len([t for t in Poisson(RATE).times(100, rng) if t < 1.0])
        times += [second + i / count for i in range(count)]
        second += 1
    return times[:n]


def workers_with_one_seed(n: int, seed: int) -> list[float]:
    """Four workers at a quarter of the rate, each seeded alike."""
    one = Poisson(RATE / 4).times(-(-n // 4), stream_rng(seed, "arrivals"))
    return sorted(one * 4)[:n]


def relative_sleeps(n: int, seed: int) -> list[float]:
    """Sleep a gap, then send: the 5 ms that sending takes are added to every gap."""
    return [time + 0.005 * (i + 1) for i, time in enumerate(poisson(n, seed))]


@pytest.mark.parametrize(
    ("mutant", "killers"),
    [
        (clipped_at_three_means, {gaps_are_exponential, gaps_vary_as_they_should}),
        (rescaled_to_end_at_n_over_rate, {the_end_is_as_random_as_it_should_be}),
        (counted_second_by_second, {gaps_are_exponential, gaps_vary_as_they_should}),
        (workers_with_one_seed, {gaps_are_exponential, gaps_vary_as_they_should, counts_are_dispersed}),
        (relative_sleeps, {gaps_are_exponential, gaps_vary_as_they_should}),
    ],
)
def test_each_known_mistake_is_killed(mutant, killers):
    assert {check for check in CHECKS if not check(mutant)} >= killers


# The other laws


@pytest.mark.parametrize("burstiness", [0.25, 0.7, 1.0, 4.0])
def test_gamma_gaps_follow_the_gamma_law(burstiness):
    gaps = gaps_of(Gamma(RATE, burstiness).times(N, stream_rng(3, "arrivals")))
    law = scipy_stats.gamma(burstiness, scale=1 / (RATE * burstiness))
    assert scipy_stats.kstest(gaps, law.cdf).pvalue > 0.01
    assert fmean(gaps) == pytest.approx(1 / RATE, rel=4 / math.sqrt(N * burstiness))
    assert pvariance(gaps) / fmean(gaps) ** 2 == pytest.approx(1 / burstiness, rel=0.25)


def test_constant_arrivals_do_not_drift():
    times = Constant(3.0).times(3_000_000, random.Random(0))
    assert times[-1] == 1_000_000.0
    assert times[2] == 1.0


@pytest.mark.parametrize("law", [Ramp(5, 35), Ramp(35, 5), Ramp(20, 20), Ramp(0, 40)])
def test_a_ramp_turned_back_by_its_own_rate_is_poisson(law):
    """Time-rescaling: the cumulated rate at the arrivals is a Poisson process of rate 1."""
    span = N / law.rate
    slope = (law.end - law.start) / span
    unit = [
        law.start * t + slope * t * t / 2 if t <= span else N + (t - span) * law.end
        for t in law.times(N, stream_rng(5, "arrivals"))
    ]
    assert scipy_stats.kstest(gaps_of(unit), "expon").pvalue > 0.01
    times = law.times(N, stream_rng(5, "arrivals"))
    assert times == sorted(times)
    thirds = [sum(a < t <= a + span / 3 for t in times) for a in (0.0, span / 3, 2 * span / 3)]
    expected = [
        (law.start + slope * span * (2 * i + 1) / 6) * span / 3 for i in range(3)
    ]  # rate at the middle of each third
    assert thirds == pytest.approx(expected, rel=0.12)


def test_pieces_have_their_rates_and_a_pause_is_empty():
    law = Piecewise(((10, 50), (0, 5), (40, 20), (5, 1)))
    times = law.times(1500, stream_rng(5, "arrivals"))
    assert times == sorted(times)
    inside = [sum(a <= t < b for t in times) for a, b in ((0, 50), (50, 55), (55, 75))]
    assert inside == [pytest.approx(500, abs=70), 0, pytest.approx(800, abs=90)]
    late = [t for t in times if t > 75]
    assert len(late) / (late[-1] - 75) == pytest.approx(5, rel=0.25)


@pytest.mark.parametrize(
    "laws",
    [
        (Poisson(2.0), Poisson(8.0)),
        (Gamma(2.0, 0.5), Gamma(8.0, 0.5)),
        (Ramp(1, 3), Ramp(4, 12)),
        (Constant(2.0), Constant(8.0)),
    ],
)
def test_four_times_the_rate_is_the_same_schedule_in_a_quarter_of_the_time(laws):
    slow, fast = (law.times(50, stream_rng(1, "arrivals")) for law in laws)
    assert [t / 4 for t in slow] == pytest.approx(fast)
