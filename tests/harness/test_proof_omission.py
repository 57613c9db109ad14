"""Proof 3: waiting counts from the schedule, and a stall shows in exactly the requests that lived it."""

from __future__ import annotations

from dataclasses import replace
from statistics import fmean

import pytest
from worlds import timed_engine, trace_of

from servelib.clock import VirtualClock
from servelib.harness.closed import drive_closed
from servelib.harness.drive import drive
from servelib.harness.lengths import Fixed
from servelib.harness.metrics import e2e, gaps, ttft
from servelib.harness.trace import Workload

EVERY, SERVICE, REQUESTS = 0.3, 0.5, 15
OVERLOAD = trace_of(*((EVERY * i, 1) for i in range(REQUESTS)))


def served(drive_it):
    clock = VirtualClock()
    return drive_it(timed_engine(clock, lambda _: SERVICE), OVERLOAD, clock)


def test_from_the_schedule_the_mean_is_1_900_seconds():
    """Request i waits behind i others, 0.2 s longer than the one before: 0.5 + 0.2 * 7 on average."""
    run = served(drive)
    assert fmean(e2e(record) for record in run.requests) == pytest.approx(1.900, abs=1e-12)
    assert e2e(run.requests[-1]) == pytest.approx(SERVICE + 14 * (SERVICE - EVERY), abs=1e-12)


def test_stamped_where_service_begins_the_same_run_says_0_5():
    """A harness whose one worker sends when it gets round to it, and starts its clock there."""
    run = served(drive)
    ends = [record.events[-1][0] for record in run.requests]
    due = [record.scheduled for record in run.requests]
    began = [max(pair) for pair in zip(due, [0.0, *ends[:-1]], strict=True)]
    assert fmean(end - start for end, start in zip(ends, began, strict=True)) == pytest.approx(0.5, abs=1e-12)


def test_a_closed_loop_of_one_caller_says_0_5_too():
    run = served(lambda engine, trace, clock: drive_closed(engine, trace, clock, 1))
    assert [e2e(record) for record in run.requests] == pytest.approx([0.5] * REQUESTS, abs=1e-12)


STALL, AT, STEP, TOKENS = 2.0, 10.0, 0.01, 5


def with_a_stall(rate: float = 4.0):
    """A server of 10 ms steps that stands still for 2 s, once, in the first step at 10 s or later."""
    clock, stalled = VirtualClock(), []

    def seconds(state):
        if not stalled and clock.now() >= AT:
            stalled.append((clock.now(), clock.now() + STALL))
            return STALL
        return STEP

    trace = Workload(Fixed(4), Fixed(TOKENS), requests=100).trace(rate)
    run = drive(timed_engine(clock, seconds), trace, clock)
    calm = VirtualClock()
    return run, drive(timed_engine(calm, lambda _: STEP), trace, calm), stalled[0]


def test_a_stall_shows_in_ttft_and_gaps_of_exactly_the_requests_that_lived_through_it():
    run, calm, (began, ended) = with_a_stall()
    touched = set()
    for record, quiet in zip(run.requests, calm.requests, strict=True):
        waited_through = record.scheduled < ended and record.events[0][0] >= ended  # no token before its end
        streaming = record.events[0][0] < ended <= record.events[-1][0]
        if streaming:
            assert max(gaps(record)) == pytest.approx(STALL)
        else:
            assert gaps(record) == pytest.approx([STEP] * (TOKENS - 1))
        if waited_through:
            assert ttft(record) >= ended - record.scheduled
            touched.add(record.request_id)
        if record.events[-1][0] <= began:
            assert record.events == quiet.events
    assert 5 <= len(touched) <= 14  # about 2 s of arrivals at 4 requests/s
    longest = max(run.requests, key=ttft)
    assert longest.request_id in touched
    assert ttft(longest) > 1.5


def test_the_backlog_of_a_stall_is_over_once_it_is_served():
    run, calm, (_, ended) = with_a_stall()
    late = [record.request_id for record, quiet in zip(run.requests, calm.requests, strict=True)
            if ttft(record) > ttft(quiet) + 1e-9]  # fmt: skip
    ids = [record.request_id for record in run.requests]
    first, last = ids.index(late[0]), ids.index(late[-1])
    assert ids[first : last + 1] == late  # one stretch, without a hole
    assert run.requests[last].scheduled < ended + 1.0
    assert ttft(run.requests[-1]) == pytest.approx(ttft(calm.requests[-1]))


def test_closed_loop_callers_hide_the_stall_from_all_but_themselves():
    clock, stalled = VirtualClock(), []

    def seconds(state):
        if not stalled and clock.now() >= 1.0:
            stalled.append(clock.now())
            return STALL
        return STEP

    trace = replace(OVERLOAD, requests=trace_of(*[(0.0, TOKENS)] * 100).requests)
    run = drive_closed(timed_engine(clock, seconds), trace, clock, 1)
    assert sum(e2e(record) > 1.0 for record in run.requests) == 1
