"""The in-process driver: hands a trace to an engine, open loop, and writes down what comes back.

Open loop: the schedule is fixed before the run. An arrival that falls due while the engine is
inside ``step()`` is handed over late, but its time stays the scheduled one, so the wait is counted
against the server that caused it and not lost (coordinated omission).
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable

from servelib.clock import Clock
from servelib.engine.protocol import Engine
from servelib.errors import InvalidRequestError
from servelib.harness.records import Outcome, RequestRecord, RunRecord
from servelib.harness.selfcheck import DriverMeter
from servelib.harness.trace import Trace, TraceRequest
from servelib.request import FinishReason, Request, SamplingParams, StepOutput

Progress = Callable[[int, int], None]
"""Called with (requests ended, requests in all)."""

STALL_STEPS = 100_000  # empty steps in a row, with work left, before we call it no progress
NAP = 0.05  # longest wall-clock sleep, so that a stop is noticed soon


class RunError(RuntimeError):
    """The engine broke the run. ``record`` is all that was seen until then; nothing is lost."""

    def __init__(self, message: str, record: RunRecord) -> None:
        super().__init__(message)
        self.record = record


def drive(
    engine: Engine,
    trace: Trace,
    clock: Clock,
    *,
    callers: int | None = None,
    on_progress: Progress | None = None,
    should_stop: Callable[[], bool] | None = None,
) -> RunRecord:
    """Run ``trace`` through ``engine`` and return every record, in arrival order.

    Tokens are stamped when ``step()`` returns. A request that the engine refuses is recorded as
    REFUSED and the run goes on. When ``should_stop`` turns true, or on Ctrl-C, what is in flight is
    aborted and the run returns with ``interrupted`` set. Raises ``RunError``, with the records, if
    ``step()`` raises, answers for a request it does not have, or makes no progress. ``callers`` is for
    ``drive_closed``.
    """
    run = _Run(engine, trace, clock, on_progress, callers)
    try:
        run.loop(should_stop)
    except KeyboardInterrupt:
        run.stop()
    except Exception as error:
        run.close(Outcome.STREAM_ERROR, str(error))
        raise RunError(f"the run of engine {engine.name!r} broke: {error}", run.finished()) from error
    return run.finished()


def shifted(on_progress: Progress | None, done: int, total: int) -> Progress | None:
    """The progress of one run as progress of several: ``done`` requests ended before it."""
    if on_progress is None:
        return None
    return lambda ended, _: on_progress(done + ended, total)


class _Run:
    """One run in progress."""

    def __init__(
        self, engine: Engine, trace: Trace, clock: Clock, on_progress: Progress | None, callers: int | None
    ) -> None:
        self.engine = engine
        self.trace = trace
        self.clock = clock
        self.on_progress = on_progress
        self.records = [
            RequestRecord(r.request_id, r.scheduled, len(r.prompt_ids), r.output_tokens)
            for r in trace.requests
        ]
        self.live: dict[str, RequestRecord] = {}
        self.free = None if callers is None else deque([0.0] * callers)  # since when callers wait to ask
        self.ended = 0
        self.interrupted = False
        self.meter = DriverMeter()
        self.start = clock.now()

    def now(self) -> float:
        return self.clock.now() - self.start

    def loop(self, should_stop: Callable[[], bool] | None) -> None:
        engine, clock, start, meter = self.engine, self.clock, self.start, self.meter
        schedule = self.trace.requests
        total, sent, empty_steps = len(schedule), 0, 0
        while sent < total or self.live:
            if should_stop is not None and should_stop():
                self.stop()
                return
            while sent < total and self.due(sent) <= clock.now() - start:
                if self.free is not None:
                    self.records[sent].scheduled = self.free.popleft()
                self.hand_over(schedule[sent], self.records[sent])
                sent += 1
            if engine.has_work:
                before = clock.now() - start
                outputs = engine.step()
                now = clock.now() - start
                meter.engine += now - before
                meter.free = now
                progress = False
                for output in outputs:
                    progress |= self.take(output, now)
                empty_steps = 0 if progress else empty_steps + 1
                if empty_steps >= STALL_STEPS:
                    raise RuntimeError(f"{empty_steps:,} steps in a row gave nothing, and it still has work")
            elif self.live:  # the engine forgot them: their streams ended without an end
                self.close(Outcome.TRUNCATED, "the engine has no more work but never finished this request")
            elif sent < total:
                due, before = start + self.due(sent), clock.now()
                clock.sleep_until(due if clock.is_virtual else min(due, before + NAP))
                meter.idle += min(due, clock.now()) - before  # waking late is not waiting

    def due(self, sent: int) -> float:
        """When request number ``sent`` is due: as the trace says or, with callers, when one is free."""
        if self.free is None:
            return self.records[sent].scheduled
        return self.free[0] if self.free else math.inf

    def hand_over(self, wanted: TraceRequest, record: RequestRecord) -> None:
        sampling = SamplingParams(max_tokens=wanted.output_tokens, ignore_eos=True)
        record.sent = self.now()
        self.meter.lags.append(record.sent - max(record.scheduled, self.meter.free))
        try:
            self.engine.add_request(Request(wanted.request_id, wanted.prompt_ids, sampling))
        except InvalidRequestError as error:
            self.end(record, record.sent, Outcome.REFUSED, str(error))
        else:
            self.live[wanted.request_id] = record

    def take(self, output: StepOutput, now: float) -> bool:
        """Write one output down; whether it held anything."""
        record = self.live.get(output.request_id)
        if record is None:
            raise RuntimeError(f"it answered for {output.request_id!r}, which is not in flight")
        if output.tokens:
            record.events.append((now, len(output.tokens)))
        reason = output.finish_reason
        if reason is None:
            if len(record.events) > record.requested_tokens:  # it would go on for ever
                raise RuntimeError(f"it gives {output.request_id!r} more tokens than were asked for")
            return bool(output.tokens)
        del self.live[output.request_id]
        if reason is FinishReason.ERROR:
            self.end(record, now, Outcome.STREAM_ERROR, output.error)
        elif reason is FinishReason.ABORT:
            self.end(record, now, Outcome.ABORTED, output.error)
        elif record.output_tokens < record.requested_tokens:
            wanted = f"{record.output_tokens} of {record.requested_tokens} tokens"
            self.end(record, now, Outcome.SHORT, wanted)
        else:
            self.end(record, now, Outcome.OK)
        return True

    def end(self, record: RequestRecord, now: float, outcome: Outcome, error: str | None = None) -> None:
        record.end, record.outcome, record.error = now, outcome, error
        self.ended += 1
        if self.free is not None:
            self.free.append(now)
        if self.on_progress is not None:
            self.on_progress(self.ended, len(self.records))

    def close(self, outcome: Outcome, error: str) -> None:
        """End everything in flight."""
        now = self.now()
        for record in list(self.live.values()):
            self.end(record, now, outcome, error)
        self.live.clear()

    def stop(self) -> None:
        """The person who runs it has seen enough: abort what is in flight."""
        self.interrupted = True
        for request_id in self.live:
            self.engine.abort(request_id)
        self.close(Outcome.ABORTED, "the run was stopped")

    def finished(self) -> RunRecord:
        for record in self.records:
            if record.outcome is None:  # never handed over, because the run ended first
                record.outcome, record.error = Outcome.ABORTED, "the run ended before its turn"
        ends = [record.end for record in self.records if record.end is not None]
        duration = max(ends, default=0.0)
        judged = None if self.clock.is_virtual else self.meter.verdict(duration)
        trace = self.trace
        return RunRecord(trace.seed, trace.hash, self.records, duration, self.interrupted, judged, self.start)
