"""The HTTP driver: sends a trace to any OpenAI-compatible server, open loop, and writes down what comes.

Every request is a task of its own on one event loop, started at its scheduled time whatever became of
the others. Bodies are written before the run. A connection carries one request, and nothing limits how
many there are.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Coroutine
from dataclasses import replace
from typing import Any

import aiohttp

from servelib.clock import Clock, WallClock
from servelib.errors import InvalidRequestError
from servelib.harness.drive import Progress, RunError
from servelib.harness.exchange import NO_DESCRIPTORS, exchange, open_session
from servelib.harness.openai_stream import CountTokens, StreamReader, credit
from servelib.harness.pauses import no_full_collections
from servelib.harness.records import Outcome, RequestRecord, RunRecord
from servelib.harness.selfcheck import LIMITS, LoopWatch, check
from servelib.harness.target import Target, TextCodec
from servelib.harness.trace import Trace

NAP = 0.05  # how often a stop is looked for


def drive_http(
    target: Target,
    trace: Trace,
    clock: Clock | None = None,
    *,
    callers: int | None = None,
    codec: TextCodec | None = None,
    on_progress: Progress | None = None,
    should_stop: Callable[[], bool] | None = None,
) -> RunRecord:
    """Run ``trace`` against ``target`` and return every record, in arrival order.

    An event is stamped when its last byte arrives. A failed request is recorded with its outcome and
    the run goes on. When ``should_stop`` turns true, or on Ctrl-C, what is in flight is aborted and the
    run returns with ``interrupted`` set. ``codec`` spells prompts that are not printable ASCII, and
    counts tokens where the server does not. With ``callers`` the loop is closed: that many callers take
    one request after the other, ``scheduled`` is when a caller was free, and the trace's times are not
    used. Raises ``InvalidRequestError`` before anything is sent, and ``RunError``, with the records, if
    the driver itself breaks.
    """
    run = _Run(target, trace, clock or WallClock(), codec, on_progress)
    if callers is not None and callers < 1:
        raise InvalidRequestError("callers", callers, "an integer >= 1")
    try:
        with no_full_collections():
            run_async(lambda stop: run.play(callers, should_stop, stop))
    except Exception as error:
        raise RunError(f"the run against {target.address} broke: {error}", run.finished()) from error
    return run.finished()


def run_async(work: Callable[[threading.Event], Coroutine[Any, Any, None]]) -> None:
    """Run a coroutine to its end; inside a notebook, whose own loop is busy, on a thread beside it.

    ``work`` is given an event that is set on Ctrl-C in that case; otherwise its task is cancelled.
    """
    stop = threading.Event()
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        asyncio.run(work(stop))
        return
    failure: list[BaseException] = []

    def beside() -> None:
        try:
            asyncio.run(work(stop))
        except BaseException as error:
            failure.append(error)

    thread = threading.Thread(target=beside, name="servelib-load", daemon=True)
    thread.start()
    while thread.is_alive():
        try:
            thread.join(NAP)
        except KeyboardInterrupt:
            stop.set()
    if failure:
        raise failure[0]


class _Run:
    """One run in progress."""

    def __init__(
        self,
        target: Target,
        trace: Trace,
        clock: Clock,
        codec: TextCodec | None,
        on_progress: Progress | None,
    ) -> None:
        if clock.is_virtual:
            raise InvalidRequestError("clock", "a virtual clock", "a wall clock: the server keeps real time")
        target.headers()  # a missing key is found here
        self.target = target
        self.trace = trace
        self.clock = clock
        self.count: CountTokens | None = None if codec is None else (lambda text: len(codec.encode(text)))
        self.on_progress = on_progress
        self.bodies = [target.body(wanted, codec) for wanted in trace.requests]
        self.records = [
            RequestRecord(r.request_id, r.scheduled, len(r.prompt_ids), r.output_tokens)
            for r in trace.requests
        ]
        self.ended = 0
        self.interrupted = False
        self.loop_watch = LoopWatch(clock)
        self.thread_share = 0.0
        self.start = clock.now()

    def now(self) -> float:
        return self.clock.now() - self.start

    async def play(
        self, callers: int | None, should_stop: Callable[[], bool] | None, stop: threading.Event
    ) -> None:
        """Send everything and wait for it, or abort it when told to stop."""
        async with open_session(self.target, self.now) as session:
            sending = self.open_loop(session) if callers is None else self.closed_loop(session, callers)
            watch = asyncio.ensure_future(self.loop_watch.run())
            self.start = self.clock.now()
            work = asyncio.ensure_future(sending)
            try:
                while not work.done():
                    if stop.is_set() or (should_stop is not None and should_stop()):
                        self.interrupted = True
                        break
                    await asyncio.wait([work], timeout=NAP)
            except asyncio.CancelledError:  # Ctrl-C
                self.interrupted = True
            work.cancel()
            watch.cancel()
            await asyncio.gather(work, watch, return_exceptions=True)
            self.thread_share = self.loop_watch.share()
        if not work.cancelled() and (error := work.exception()) is not None:
            raise error.exceptions[0] if isinstance(error, BaseExceptionGroup) else error

    async def open_loop(self, session: aiohttp.ClientSession) -> None:
        """Start each request at its own time."""
        async with asyncio.TaskGroup() as tasks:
            for i, wanted in enumerate(self.trace.requests):
                if (wait := self.start + wanted.scheduled - self.clock.now()) > 0:
                    await asyncio.sleep(wait)
                tasks.create_task(self.send(session, i))

    async def closed_loop(self, session: aiohttp.ClientSession, callers: int) -> None:
        """Callers who each wait for their answer before they ask again."""
        left = iter(range(len(self.records)))

        async def call() -> None:
            for i in left:
                self.records[i].scheduled = self.now()
                await self.send(session, i)

        async with asyncio.TaskGroup() as tasks:
            for _ in range(callers):
                tasks.create_task(call())

    async def send(self, session: aiohttp.ClientSession, i: int) -> None:
        """One request, from its first byte to its outcome."""
        target, record, stream = self.target, self.records[i], StreamReader()
        record.sent = self.now()
        try:
            outcome, error = await exchange(session, target, self.bodies[i], stream, self.now)
        except asyncio.CancelledError:
            self.end(record, stream, Outcome.ABORTED, "the run was stopped")
            raise
        self.end(record, stream, outcome, error)

    def end(self, record: RequestRecord, stream: StreamReader, outcome: Outcome, error: str | None) -> None:
        """Write down how it went, once."""
        found = credit(stream, self.count)
        record.events, record.tokens_from, record.tokens_note = found.events, found.source, found.note
        if stream.prompt_tokens is not None:
            record.prompt_tokens = stream.prompt_tokens
        if outcome is Outcome.OK and record.output_tokens < record.requested_tokens:
            outcome, error = Outcome.SHORT, f"{record.output_tokens} of {record.requested_tokens} tokens"
        record.end, record.outcome, record.error = self.now(), outcome, error
        self.ended += 1
        if self.on_progress is not None:
            self.on_progress(self.ended, len(self.records))

    def finished(self) -> RunRecord:
        """The run as it is kept."""
        for record in self.records:
            if record.outcome is None:
                record.outcome, record.error = Outcome.ABORTED, "the run ended before its turn"
        ends = [record.end for record in self.records if record.end is not None]
        lags = [r.sent - r.scheduled for r in self.records if r.sent is not None]
        judged = check("http", self.thread_share, lags, self.loop_watch.lags, LIMITS)
        if unsent := sum(record.error == NO_DESCRIPTORS for record in self.records):
            judged = replace(judged, reasons=(*judged.reasons, f"{unsent} requests {NO_DESCRIPTORS}"))
        duration, trace = max(ends, default=0.0), self.trace
        return RunRecord(trace.seed, trace.hash, self.records, duration, self.interrupted, judged, self.start)
