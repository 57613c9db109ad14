"""Five load generators to find the fault in. Each runs, each prints a report, and each is wrong once.

They share what is right, ``Desk``: it hands requests to the engine and writes down what comes back.
Every fault is one that published tools have had. Do not use them for anything else.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from servelib.clock import Clock
from servelib.engine.protocol import Engine
from servelib.errors import InvalidRequestError
from servelib.harness.metrics import SLO, gaps, meets, tpot, ttft
from servelib.harness.records import Outcome, RequestRecord
from servelib.harness.stats import percentile
from servelib.harness.trace import Trace, TraceRequest
from servelib.request import FinishReason, Request, SamplingParams


@dataclass(frozen=True, slots=True)
class Claims:
    """What a load generator says at the end of a run. Seconds; None where undefined.

    ``ttft`` of the answered requests in arrival order, ``gap_p99`` over all gaps between tokens,
    ``goodput`` the fraction of the requests that met the SLO.
    """

    ttft: list[float | None]
    gap_p99: float | None
    goodput: float


class Desk:
    """Hands requests to an engine and keeps a record of each in ``calls``. Times from its making."""

    def __init__(self, engine: Engine, clock: Clock) -> None:
        self.calls: list[RequestRecord] = []
        self._engine, self._clock, self._start = engine, clock, clock.now()
        self._live: dict[str, RequestRecord] = {}

    def now(self) -> float:
        """Seconds since the run began."""
        return self._clock.now() - self._start

    def send(self, request: TraceRequest, *, due: float) -> None:
        """Hand over a request now. ``due`` is kept as the time from which its latency counts."""
        name, n_tokens = request.request_id, request.output_tokens
        call = RequestRecord(name, due, len(request.prompt_ids), n_tokens, sent=self.now())
        self.calls.append(call)
        try:
            self._engine.add_request(Request(name, request.prompt_ids, SamplingParams(max_tokens=n_tokens)))
            self._live[name] = call
        except InvalidRequestError as error:
            call.end, call.outcome, call.error = call.sent, Outcome.REFUSED, str(error)

    def serve_until(self, when: float) -> None:
        """Let the engine work, or sleep, until ``when``. A step under way is never cut short."""
        while self.now() < when:
            if self._engine.has_work:
                self._step()
            else:
                self._clock.sleep_until(self._start + when)

    def serve_all(self) -> None:
        """Let the engine work until every call has ended."""
        while self._live:
            self._step()

    def _step(self) -> None:
        for output in self._engine.step():
            call = self._live[output.request_id]
            if output.tokens:
                call.events.append((self.now(), len(output.tokens)))
            if output.finish_reason is not None:
                failed = output.finish_reason in (FinishReason.ERROR, FinishReason.ABORT)
                call.end, call.outcome = self.now(), Outcome.STREAM_ERROR if failed else Outcome.OK
                del self._live[output.request_id]


def load_a(engine: Engine, trace: Trace, clock: Clock) -> Claims:
    """Load generator A."""
    desk = Desk(engine, clock)
    for request in trace.requests:
        desk.serve_until(request.scheduled)
        desk.send(request, due=request.scheduled)
        desk.serve_all()
    answered = [call for call in desk.calls if call.ok]
    return Claims(
        ttft=[ttft(call) for call in answered],
        gap_p99=percentile(sorted(gap for call in answered for gap in gaps(call)), 0.99),
        goodput=sum(meets(call, SLO()) for call in answered) / len(desk.calls),
    )


def load_b(engine: Engine, trace: Trace, clock: Clock) -> Claims:
    """Load generator B."""
    desk = Desk(engine, clock)
    for request in trace.requests:
        desk.serve_until(request.scheduled)
        desk.send(request, due=desk.now())
    desk.serve_all()
    answered = [call for call in desk.calls if call.ok]
    return Claims(
        ttft=[ttft(call) for call in answered],
        gap_p99=percentile(sorted(gap for call in answered for gap in gaps(call)), 0.99),
        goodput=sum(meets(call, SLO()) for call in answered) / len(desk.calls),
    )


def load_c(engine: Engine, trace: Trace, clock: Clock) -> Claims:
    """Load generator C."""
    desk = Desk(engine, clock)
    for request in trace.requests:
        desk.serve_until(request.scheduled)
        desk.send(request, due=request.scheduled)
    desk.serve_all()
    calls = [call for call in desk.calls if call.ok]
    return Claims(
        ttft=[ttft(call) for call in calls],
        gap_p99=percentile(sorted(gap for call in calls for gap in gaps(call)), 0.99),
        goodput=sum(meets(call, SLO()) for call in calls) / len(calls),
    )


def load_d(engine: Engine, trace: Trace, clock: Clock) -> Claims:
    """Load generator D."""
    desk = Desk(engine, clock)
    before = 0.0
    for request in trace.requests:
        due = desk.now() + (request.scheduled - before)
        before = request.scheduled
        desk.serve_until(due)
        desk.send(request, due=due)
    desk.serve_all()
    answered = [call for call in desk.calls if call.ok]
    return Claims(
        ttft=[ttft(call) for call in answered],
        gap_p99=percentile(sorted(gap for call in answered for gap in gaps(call)), 0.99),
        goodput=sum(meets(call, SLO()) for call in answered) / len(desk.calls),
    )


def load_e(engine: Engine, trace: Trace, clock: Clock) -> Claims:
    """Load generator E."""
    desk = Desk(engine, clock)
    for request in trace.requests:
        desk.serve_until(request.scheduled)
        desk.send(request, due=request.scheduled)
    desk.serve_all()
    answered = [call for call in desk.calls if call.ok]
    between_tokens = [seconds for call in answered if (seconds := tpot(call)) is not None]
    return Claims(
        ttft=[ttft(call) for call in answered],
        gap_p99=percentile(sorted(between_tokens), 0.99),
        goodput=sum(meets(call, SLO()) for call in answered) / len(desk.calls),
    )


Generator = Callable[[Engine, Trace, Clock], Claims]
"""Runs a trace against an engine and says what it saw."""

BROKEN: dict[str, Generator] = {"A": load_a, "B": load_b, "C": load_c, "D": load_d, "E": load_e}
"""The five, by letter."""
