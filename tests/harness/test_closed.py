from __future__ import annotations

from statistics import fmean

import pytest
from worlds import timed_engine, trace_of

from servelib.clock import VirtualClock
from servelib.errors import InvalidRequestError
from servelib.harness.closed import drive_closed
from servelib.harness.metrics import e2e, send_lag


def test_callers_wait_for_their_answer_before_they_ask_again():
    clock = VirtualClock()
    run = drive_closed(
        timed_engine(clock, lambda _: 0.5), trace_of(*((9.0 * i, 1) for i in range(6))), clock, 2
    )
    assert [r.scheduled for r in run.requests] == [0.0, 0.0, 0.5, 1.0, 1.5, 2.0]
    assert [e2e(r) for r in run.requests] == [0.5, 1.0, 1.0, 1.0, 1.0, 1.0]
    assert [send_lag(r) for r in run.requests] == [0.0] * 6
    assert run.duration == 3.0


def test_a_closed_loop_omits_what_an_open_one_shows():
    """One caller sees 0.5 s where arrivals every 0.3 s would have waited 1.9 s on average."""
    clock = VirtualClock()
    trace = trace_of(*((0.3 * i, 1) for i in range(15)))
    run = drive_closed(timed_engine(clock, lambda _: 0.5), trace, clock, 1)
    assert fmean(e2e(r) for r in run.requests) == 0.5


def test_more_callers_than_requests_and_none():
    clock = VirtualClock()
    run = drive_closed(timed_engine(clock, lambda _: 1.0), trace_of((5.0, 1)), clock, 8)
    assert run.requests[0].events == [(1.0, 1)]
    with pytest.raises(InvalidRequestError, match="callers: got 0"):
        drive_closed(timed_engine(clock, lambda _: 1.0), trace_of((5.0, 1)), clock, 0)
