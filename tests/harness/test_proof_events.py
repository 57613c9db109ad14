"""Proof 4: metrics from events hold whatever arrived: bursts, one token, none, and failures."""

from __future__ import annotations

import json
import math
import warnings

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from worlds import record, run_of

from servelib.harness.html import rate_over_time
from servelib.harness.metrics import SLO, e2e, gaps, meets, run_metrics, samples, tpot, ttft
from servelib.harness.records import Outcome, RequestRecord
from servelib.harness.summary import PERCENTILES, summarise

bursts = st.lists(st.tuples(st.floats(0.0, 5.0), st.integers(1, 8)), min_size=1, max_size=30)


def from_bursts(parts, scheduled=0.0) -> RequestRecord:
    time, events = scheduled, []
    for wait, tokens in parts:
        time += wait
        events.append((time, tokens))
    return record(events, scheduled=scheduled)


@given(bursts, st.floats(0, 100))
@settings(derandomize=True, deadline=None)
def test_gaps_add_up_to_last_minus_first_and_there_is_one_less_than_tokens(parts, scheduled):
    made = from_bursts(parts, scheduled)
    found = gaps(made)
    assert len(found) == made.output_tokens - 1
    assert math.fsum(found) == pytest.approx(made.events[-1][0] - made.events[0][0], abs=1e-9)
    assert e2e(made) == pytest.approx(ttft(made) + math.fsum(found), abs=1e-9)
    assert all(gap >= 0 for gap in found)


@given(st.lists(bursts, min_size=1, max_size=4), st.integers(1, 80))
@settings(derandomize=True, deadline=None)
def test_the_peak_rate_is_never_below_the_mean_and_no_token_falls_between_two_bins(requests, bins):
    run = run_of(*[from_bursts(parts) for parts in requests])
    _, rates = rate_over_time(run, bins)
    mean = run_metrics(run).output_tokens_per_second
    if mean is not None:
        assert max(rates) >= mean * (1 - 1e-12)
        assert math.fsum(rates) / bins == pytest.approx(mean)


@pytest.mark.parametrize("first", [1, 2, 7, 40])
def test_many_tokens_in_the_first_chunk_do_not_distort_tpot(first):
    made = record([(1.0, first), *((1.0 + 0.1 * i, 1) for i in range(1, 11))])
    assert tpot(made) == pytest.approx(0.1)
    assert ttft(made) == 1.0
    assert gaps(made).count(0.0) == first - 1


def test_one_token_has_a_ttft_and_an_end_but_no_gap_and_no_tpot():
    made = record([(0.5, 1)])
    assert (ttft(made), e2e(made), gaps(made), tpot(made)) == (0.5, 0.5, [], None)
    assert meets(made, SLO())
    one_burst = record([(0.5, 9)])
    assert (tpot(one_burst), gaps(one_burst)) == (None, [0.0] * 8)


def test_no_token_is_a_failure_with_nothing_to_measure():
    made = record([], outcome=Outcome.SHORT, requested=4)
    assert (ttft(made), e2e(made), gaps(made), tpot(made)) == (None, None, [], None)
    assert not meets(made, SLO(1e9, 1e9))


@pytest.mark.parametrize(
    "run",
    [
        run_of(),
        run_of(record([(0.5, 1)])),
        run_of(record([(0.0, 1)])),
        run_of(record([], outcome=Outcome.REFUSED, requested=4)),
        run_of(*[record([], outcome=Outcome.TIMED_OUT, requested=4)] * 200),
        run_of(*[record([(1.0, 3)], outcome=Outcome.STREAM_ERROR)] * 3),
    ],
    ids=["nothing", "one token", "at time 0", "one refused", "all timed out", "all broke"],
)
def test_nothing_to_divide_by_is_null_with_a_count_and_no_warning(run):
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        summary = summarise([run])
    good = [r for r in run.requests if r.ok]
    assert (summary.offered, summary.completed) == (len(run.requests), len(good))
    for name in PERCENTILES:
        estimate = summary.estimates()[name]
        whose = PERCENTILES[name][0]
        assert estimate.samples == len(getattr(samples(run), whose))
        assert (estimate.value is None) == (estimate.samples == 0)
        if estimate.value is None:
            assert estimate.note == "undefined in every run"
    assert summary.goodput_fraction.value == (None if not run.requests else pytest.approx(
        sum(meets(r, SLO()) for r in run.requests) / len(run.requests)))  # fmt: skip
    json.dumps([e.value for e in summary.estimates().values()], allow_nan=False)


def test_thirty_per_cent_failures_leave_the_percentiles_of_successes_and_stay_in_the_denominator():
    good = [record([(i + 0.1 + 0.001 * i, 1), (i + 0.14, 1)], scheduled=float(i)) for i in range(70)]
    bad = [
        record([(i + 30.0, 1)] if i % 2 else [], scheduled=float(i), outcome=Outcome.TIMED_OUT, requested=2)
        for i in range(30)
    ]
    alone, mixed = run_metrics(run_of(*good)), run_metrics(run_of(*good, *bad))
    for name in PERCENTILES:
        if not name.startswith("send_lag"):
            assert getattr(alone, name) == getattr(mixed, name)
    assert (mixed.offered, mixed.completed, mixed.failed) == (100, 70, 30)
    met = round(alone.goodput_fraction * 70)
    assert mixed.goodput_fraction == met / 100
    assert met > 0


@pytest.mark.parametrize("outcome", [outcome for outcome in Outcome if outcome is not Outcome.OK])
def test_an_objective_is_not_met_by_what_is_null_or_failed(outcome):
    assert not meets(record([], outcome=Outcome.OK, requested=1), SLO(1e9, 1e9))
    assert not meets(record([(0.1, 4)], outcome=outcome), SLO(1e9, 1e9))
