from __future__ import annotations

from statistics import fmean

import pytest
from hypothesis import given
from hypothesis import strategies as st
from worlds import ScriptedEngine, out, timed_engine, trace_of

from servelib.clock import VirtualClock
from servelib.harness import drive as drive_module
from servelib.harness.drive import RunError, drive
from servelib.harness.metrics import SLO, e2e, gaps, run_metrics, send_lag, ttft
from servelib.harness.records import Outcome
from servelib.request import FinishReason


def test_coordinated_omission_is_not_omitted():
    """A request each 0.3 s that takes 0.5 s: 1.9 s on average from the schedule, 0.5 s from its start."""
    clock = VirtualClock()
    run = drive(timed_engine(clock, lambda _: 0.5), trace_of(*((0.3 * i, 1) for i in range(15))), clock)
    assert fmean(e2e(r) for r in run.requests) == pytest.approx(1.9, abs=1e-12)
    assert [e2e(r) for r in run.requests] == pytest.approx([0.5 + 0.2 * i for i in range(15)])


def test_an_arrival_inside_a_step_keeps_its_scheduled_time():
    clock = VirtualClock()
    run = drive(timed_engine(clock, lambda _: 1.0), trace_of((0.0, 2), (0.25, 1)), clock)
    late = run.requests[1]
    assert (late.scheduled, late.sent) == (0.25, 1.0)  # handed over when step() came back
    assert send_lag(late) == 0.75
    assert ttft(late) == 2.75  # at 3.0, counted from 0.25
    assert run.requests[0].events == [(1.0, 1), (2.0, 1)]


def test_time_starts_at_the_run_not_at_the_clock_s_origin():
    clock = VirtualClock(start=1000.0)
    run = drive(timed_engine(clock, lambda _: 1.0), trace_of((0.5, 1)), clock)
    assert (run.requests[0].sent, run.requests[0].end, run.duration) == (0.5, 1.5, 1.5)


def test_a_stall_shows_in_exactly_the_requests_that_lived_through_it():
    clock = VirtualClock()
    engine = timed_engine(
        clock, lambda s: 2.0 if (s.request.request_id, len(s.output_ids)) == ("r1", 2) else 0.01
    )
    run = drive(engine, trace_of(*((0.1 * i, 4) for i in range(4)), (5.0, 4)), clock)
    assert [max(gaps(r)) for r in run.requests] == pytest.approx([0.01, 2.0, 0.01, 0.01, 0.01])
    assert [ttft(r) > 1.8 for r in run.requests] == [False, False, True, True, False]


def test_every_outcome_is_recorded_and_the_run_goes_on():
    clock = VirtualClock()
    script = [
        [out("r0", 1), out("r1", 1, FinishReason.STOP), out("r2", 0, FinishReason.ERROR, "lost")],
        [out("r0", 2, FinishReason.LENGTH), out("r3", 1, FinishReason.ABORT)],
    ]
    run = drive(ScriptedEngine(clock, script), trace_of(*[(0.0, 3)] * 5), clock)
    assert [r.outcome for r in run.requests] == [
        Outcome.OK,
        Outcome.SHORT,
        Outcome.STREAM_ERROR,
        Outcome.ABORTED,
        Outcome.TRUNCATED,  # the engine forgot it
    ]
    assert run.requests[0].events == [(1.0, 1), (2.0, 2)]
    assert run.requests[2].error == "lost"
    assert not run.interrupted


def test_a_refused_request_is_a_record_and_no_more():
    clock = VirtualClock()
    run = drive(timed_engine(clock, lambda _: 1.0), trace_of((0.0, 1), (0.0, 5000), (0.0, 1)), clock)
    assert [r.outcome for r in run.requests] == [Outcome.OK, Outcome.REFUSED, Outcome.OK]
    assert "5000" in run.requests[1].error
    assert run_metrics(run).goodput_fraction == pytest.approx(1 / 3)


def test_a_model_that_raises_fails_one_request():
    clock = VirtualClock()

    def seconds(state):
        if state.request.request_id == "r1":
            raise ValueError("bad weights")
        return 1.0

    run = drive(timed_engine(clock, seconds), trace_of((0.0, 1), (0.0, 1), (0.0, 1)), clock)
    assert [r.outcome for r in run.requests] == [Outcome.OK, Outcome.STREAM_ERROR, Outcome.OK]


@pytest.mark.parametrize("how", ["should_stop", "ctrl-c"])
def test_stopping_aborts_what_is_in_flight_and_keeps_every_record(how):
    clock = VirtualClock()

    def seconds(state):
        if how == "ctrl-c" and clock.now() >= 3.0:
            raise KeyboardInterrupt
        return 1.0

    engine = timed_engine(clock, seconds)
    stop = (lambda: clock.now() >= 3.0) if how == "should_stop" else None
    run = drive(engine, trace_of((0.0, 2), (0.0, 9), (50.0, 1)), clock, should_stop=stop)
    assert run.interrupted
    assert [r.outcome for r in run.requests] == [Outcome.OK, Outcome.ABORTED, Outcome.ABORTED]
    assert run.requests[1].events == [(3.0, 1)]
    assert run.requests[2].sent is None
    assert not engine.has_work


def test_an_engine_that_makes_no_progress_is_an_error_with_the_records(monkeypatch):
    monkeypatch.setattr(drive_module, "STALL_STEPS", 50)
    clock = VirtualClock()
    engine = ScriptedEngine(clock, [[out("r0", 1, FinishReason.LENGTH)]] + [[]] * 100, seconds=0.0)
    with pytest.raises(RunError, match="50 steps in a row gave nothing") as caught:
        drive(engine, trace_of((0.0, 1), (0.0, 1)), clock)
    assert [r.outcome for r in caught.value.record.requests] == [Outcome.OK, Outcome.STREAM_ERROR]


def test_an_answer_for_nobody_is_an_error():
    clock = VirtualClock()
    with pytest.raises(RunError, match="'ghost', which is not in flight"):
        drive(ScriptedEngine(clock, [[out("ghost", 1)]]), trace_of((0.0, 1)), clock)


def test_progress_counts_every_request_once():
    clock = VirtualClock()
    seen: list[tuple[int, int]] = []
    drive(
        timed_engine(clock, lambda _: 1.0),
        trace_of((0.0, 1), (0.0, 5000), (9.0, 2)),
        clock,
        on_progress=lambda done, total: seen.append((done, total)),
    )
    assert seen == [(1, 3), (2, 3), (3, 3)]


@given(
    st.lists(st.tuples(st.floats(0, 20), st.integers(1, 6)), min_size=1, max_size=8),
    st.floats(0.001, 2.0),
)
def test_what_holds_of_every_run(requests, seconds):
    clock = VirtualClock()
    run = drive(timed_engine(clock, lambda _: seconds), trace_of(*sorted(requests)), clock)
    for r in run.requests:
        assert r.ok
        assert r.output_tokens == r.requested_tokens
        assert sum(gaps(r)) == pytest.approx(r.events[-1][0] - r.events[0][0])
        assert r.sent >= r.scheduled
        assert ttft(r) >= seconds * 0.999999
    busy = seconds * sum(n for _, n in requests)
    assert run.duration >= busy * 0.999999
    met = run_metrics(run, SLO(1e9, 1e9))
    assert met.goodput_fraction == 1.0
    assert met.output_tokens_per_second <= 1.000001 / seconds
