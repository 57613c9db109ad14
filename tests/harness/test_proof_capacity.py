"""Proof 7: the search finds the capacity that theory gives, and says how sure it is."""

from __future__ import annotations

import math

import pytest
from queues import SingleServer, exponential

from servelib.errors import InvalidRequestError
from servelib.harness.capacity import find_capacity
from servelib.harness.lengths import Fixed
from servelib.harness.metrics import SLO
from servelib.harness.stats import Estimate
from servelib.harness.sweep import measure
from servelib.harness.trace import Workload


def known(rate: float) -> Estimate:
    """90 % at exactly 8/s, with an interval of 0.05 on each side."""
    value = max(0.0, 1 - rate / 80)
    return Estimate(value, value - 0.05, value + 0.05, n=3)


def test_m_m_1_holds_nine_of_ten_within_t_up_to_mu_minus_ln_10_over_t():
    mu, within = 10.0, 1.0
    workload = Workload(Fixed(1), Fixed(1), requests=4000)

    def attain(rate: float) -> Estimate:
        return measure(
            lambda clock: SingleServer(clock, exponential(1 / mu)),
            workload,
            rate,
            runs=4,
            slo=SLO(ttft=within),
            clock="virtual",
        ).summary.goodput_fraction

    found = find_capacity(attain, start=5.0, tolerance=0.015, max_evaluations=16)
    truth = mu - math.log(10) / within
    assert found.rate.value == pytest.approx(truth, rel=0.03)
    assert found.rate.low < truth < found.rate.high
    assert found.settled
    assert len(found.evaluations) <= 16


def test_the_estimate_and_its_interval_are_where_the_curves_cross():
    found = find_capacity(known, start=1.0, tolerance=0.001, max_evaluations=100)
    assert found.rate.value == pytest.approx(8.0, rel=0.002)
    assert found.rate.low == pytest.approx(4.0, rel=0.002)
    assert found.rate.high == pytest.approx(12.0, rel=0.002)
    assert found.settled
    rates = [e.rate for e in found.evaluations]
    assert rates == sorted(rates)
    assert len(rates) < 45


@pytest.mark.parametrize("start", [0.01, 8.0, 500.0])
def test_where_it_starts_does_not_matter(start):
    assert find_capacity(known, start=start).rate.value == pytest.approx(8.0, rel=0.021)


@pytest.mark.parametrize("budget", [1, 2, 5, 9])
def test_the_cost_is_bounded_and_a_search_cut_short_says_so(budget):
    calls = []

    def attain(rate):
        calls.append(rate)
        return known(rate)

    found = find_capacity(attain, max_evaluations=budget, tolerance=1e-4)
    assert len(calls) == len(set(calls)) == len(found.evaluations) == budget
    assert not found.settled
    assert found.rate.note


def test_never_and_always_are_said_and_not_guessed():
    always = find_capacity(lambda rate: Estimate(1.0, 1.0, 1.0), highest=64.0)
    assert (always.rate.value, always.rate.high) == (64.0, None)
    assert always.rate.note == "held at the highest rate tried, 64/s"
    never = find_capacity(lambda rate: Estimate(0.2, 0.1, 0.3), lowest=0.25)
    assert (never.rate.value, never.rate.low) == (None, None)
    assert never.rate.note == "failed at the lowest rate tried, 0.25/s"


def test_one_run_a_rate_has_no_interval_and_spends_nothing_on_one():
    found = find_capacity(lambda rate: Estimate(known(rate).value), max_evaluations=100)
    assert found.rate.interval is None
    assert len(found.evaluations) < 12


@pytest.mark.parametrize(
    ("wrong", "field"),
    [({"target": 0.0}, "target"), ({"target": 1.5}, "target"), ({"tolerance": 0.0}, "tolerance"),
     ({"max_evaluations": 0}, "max_evaluations"), ({"start": 0.0}, "start"), ({"start": math.nan}, "start")],
)  # fmt: skip
def test_a_bad_argument_is_named(wrong, field):
    with pytest.raises(InvalidRequestError) as caught:
        find_capacity(known, **wrong)
    assert caught.value.field == field
