from __future__ import annotations

import math
import warnings

import pytest
from hypothesis import given
from hypothesis import strategies as st
from worlds import record, run_of

from servelib.errors import InvalidRequestError
from servelib.harness.metrics import SLO, e2e, gaps, meets, run_metrics, tpot, ttft
from servelib.harness.records import Outcome

EVENTS = st.lists(st.tuples(st.floats(0, 100), st.integers(1, 5)), min_size=1, max_size=10).map(
    lambda events: sorted(events)
)


def test_by_hand():
    r = record([(1.5, 1), (2.0, 3), (2.75, 1)], scheduled=1.0)
    assert ttft(r) == 0.5
    assert gaps(r) == [0.5, 0.0, 0.0, 0.75]
    assert tpot(r) == 1.25 / 4
    assert e2e(r) == 1.75


def test_a_burst_in_the_first_event_does_not_distort_tpot():
    assert tpot(record([(1.0, 10), (1.5, 1), (2.0, 1)])) == 0.5
    assert gaps(record([(1.0, 3)])) == [0.0, 0.0]


def test_one_event_has_no_tpot_and_none_has_nothing():
    assert tpot(record([(1.0, 4)])) is None
    silent = record([], outcome=Outcome.SHORT, requested=3)
    assert (ttft(silent), tpot(silent), e2e(silent), gaps(silent)) == (None, None, None, [])


@given(EVENTS)
def test_gaps_add_up_and_there_is_one_less_than_tokens(events):
    r = record(events)
    assert len(gaps(r)) == r.output_tokens - 1
    assert sum(gaps(r)) == pytest.approx(events[-1][0] - events[0][0])


@pytest.mark.parametrize(
    ("r", "met"),
    [
        (record([(1.0, 1), (1.05, 1)], scheduled=0.0), True),  # the limits themselves are met
        (record([(1.01, 1), (1.02, 1)]), False),
        (record([(0.5, 1), (0.56, 1)]), False),
        (record([(0.5, 1)], outcome=Outcome.SHORT), False),
    ],
)
def test_meeting_an_slo(r, met):
    assert meets(r, SLO(ttft=1.0, gap=0.0500001)) is met


@pytest.mark.parametrize("bad", [0.0, -1.0, math.nan, math.inf])
def test_an_slo_that_means_nothing_is_refused(bad):
    with pytest.raises(InvalidRequestError, match="slo gap"):
        SLO(gap=bad)


def test_a_run_by_hand():
    slow = record([(4.0, 1)], scheduled=1.0)
    quick = record([(0.5, 1), (0.54, 1)], scheduled=0.25)
    lost = record([(0.5, 1)], outcome=Outcome.STREAM_ERROR, requested=4)
    m = run_metrics(run_of(slow, quick, lost))
    assert (m.offered, m.completed, m.failed) == (3, 2, 1)
    assert m.ttft_p50 == (3.0 + 0.25) / 2
    assert m.gap_p50 == pytest.approx(0.04)
    assert m.output_tokens_per_second == 4 / 4.0  # the tokens of the failed one were produced too
    assert m.goodput_per_second == 1 / 4.0
    assert m.goodput_fraction == 1 / 3


@given(st.lists(EVENTS, min_size=1, max_size=6), st.integers(1, 5))
def test_failures_stay_in_the_denominator_and_out_of_the_latencies(successes, failures):
    good = [record(events) for events in successes]
    bad = [record([(99.0, 1)], outcome=Outcome.TIMED_OUT) for _ in range(failures)]
    slo = SLO(ttft=1e9, gap=1e9)
    alone, mixed = run_metrics(run_of(*good), slo), run_metrics(run_of(*good, *bad), slo)
    for name in ("ttft_p50", "ttft_p99", "gap_p99", "tpot_p50", "e2e_p99"):
        assert getattr(alone, name) == getattr(mixed, name)
    assert mixed.failed == failures
    assert mixed.goodput_fraction == len(good) / (len(good) + failures)


def test_all_failed_is_null_not_zero_and_warns_of_nothing():
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        m = run_metrics(run_of(*(record([], outcome=Outcome.REFUSED, requested=2) for _ in range(3))))
    assert (m.offered, m.completed, m.failed, m.goodput_fraction) == (3, 0, 3, 0.0)
    for name in ("ttft_p50", "ttft_p99", "gap_p50", "tpot_p50", "e2e_p50", "output_tokens_per_second"):
        assert getattr(m, name) is None  # the window is empty: nothing is known of rates
    assert run_metrics(run_of(record([], outcome=Outcome.REFUSED), duration=2.0)).goodput_per_second == 0.0
