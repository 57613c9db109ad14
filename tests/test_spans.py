from __future__ import annotations

import threading

import pytest

from servelib.clock import VirtualClock
from servelib.spans import Span, SpanLog, Stage, timed


def test_there_are_nine_stages_in_the_order_of_a_request_and_two_run_the_model():
    assert [stage.value for stage in Stage] == [
        "receive", "template", "tokenize", "queue", "prefill", "sample", "decode", "detokenize", "stream",
    ]  # fmt: skip
    assert [stage for stage in Stage if stage.on_accelerator] == [Stage.PREFILL, Stage.DECODE]


def test_timed_records_exact_times_and_counts():
    log, clock = SpanLog(), VirtualClock(start=1.0)
    with timed(log, clock, "a", Stage.PREFILL, new_tokens=5, cached_tokens=3):
        clock.advance(0.25)
    assert log.spans() == [Span("a", Stage.PREFILL, 1.0, 1.25, 5, 3)]
    assert log.spans()[0].seconds == 0.25


def test_timed_records_also_what_fails_and_lets_the_error_through():
    log, clock = SpanLog(), VirtualClock()

    def fail() -> None:
        with timed(log, clock, "a", Stage.DECODE):
            clock.advance(1.0)
            raise KeyError("boom")

    with pytest.raises(KeyError, match="boom"):
        fail()
    assert [(span.stage, span.end) for span in log.spans()] == [(Stage.DECODE, 1.0)]


class NoClock:
    is_virtual = True

    def now(self) -> float:
        raise AssertionError("without a log, time is not read")

    def sleep_until(self, when: float) -> None:
        raise AssertionError


def test_without_a_log_the_body_runs_and_time_is_not_read():
    ran = []
    with timed(None, NoClock(), "a", Stage.SAMPLE):
        ran.append(1)
    assert ran == [1]


def test_spans_come_by_start_time_and_by_request():
    log = SpanLog()
    late, early, other = (
        Span("a", Stage.DECODE, 3.0, 4.0),
        Span("a", Stage.PREFILL, 1.0, 2.0),
        Span("b", Stage.QUEUE, 0.0, 9.0),
    )
    for span in (late, early, other):
        log.record(span)
    assert log.spans() == [other, early, late]
    assert log.spans("a") == [early, late]
    assert log.spans("nobody") == []
    log.clear()
    assert log.spans() == []


def test_no_span_is_lost_between_threads():
    log = SpanLog()

    def work(name: str) -> None:
        for i in range(500):
            log.record(Span(name, Stage.SAMPLE, float(i), float(i)))
            log.spans(name)

    threads = [threading.Thread(target=work, args=(f"t{i}",)) for i in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert {name: len(log.spans(name)) for name in ("t0", "t1", "t2", "t3")} == dict.fromkeys(
        ("t0", "t1", "t2", "t3"), 500
    )


def test_a_log_of_some_stages_keeps_those_and_times_no_others():
    clock, log = VirtualClock(), SpanLog(only=[Stage.QUEUE])
    log.record(Span("a", Stage.QUEUE, 0.0, 1.0))
    log.record(Span("a", Stage.SAMPLE, 1.0, 2.0))
    assert timed(log, clock, "a", Stage.DECODE) is timed(None, clock, "a", Stage.DECODE)
    assert [span.stage for span in log.spans()] == [Stage.QUEUE]
