"""Experiments in virtual time that show a load generator's fault, one for each diagnosis.

Each runs a generator where that fault, and no other, changes one number. What the number should be
comes from an honest generator in the same world.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass

from servelib.clock import Clock, VirtualClock
from servelib.engine.protocol import Engine
from servelib.exercises.broken import Claims, Desk, Generator
from servelib.harness.metrics import SLO, gaps, meets, ttft
from servelib.harness.stats import percentile
from servelib.harness.trace import Trace, TraceRequest
from servelib.model.scripted import ScriptedModel
from servelib.request import FinishReason, Request, SampledToken, StepOutput


@dataclass(frozen=True, slots=True)
class Experiment:
    """``tried`` says what was set up, ``number`` what is read, ``read`` runs a generator and reads it."""

    tried: str
    number: str
    unit: str
    read: Callable[[Generator], float]

    def evidence(self, generator: Generator) -> tuple[bool, str]:
        """Whether the generator has the fault, and the numbers that say so."""
        got, honest = self.read(generator), self.read(honest_load)
        guilty = abs(got - honest) > 1e-6
        beside = "an honest load generator gives" + ("" if guilty else " the same,")
        return guilty, f"{self.number} {got:.3g}{self.unit}; {beside} {honest:.3g}{self.unit}"


def honest_load(engine: Engine, trace: Trace, clock: Clock) -> Claims:
    """The yardstick: open loop, absolute schedule, every gap, every request."""
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


class WatchedServer:
    """Serves all its requests side by side, a token each a step, and notes who came when.

    ``seconds(request number, token number)`` is the time of one token, from 0; a step takes the sum.
    A request in ``fails`` ends in an error. ``hello``: the first event of a request holds no token.
    """

    name = "watched"

    def __init__(
        self,
        clock: VirtualClock,
        seconds: Callable[[int, int], float],
        *,
        fails: Iterable[int] = (),
        hello: bool = False,
    ) -> None:
        self.model = ScriptedModel([97])
        self.received: list[float] = []
        self.most = 0  # requests in flight at once
        self._clock, self._seconds, self._fails, self._hello = clock, seconds, frozenset(fails), hello
        self._live: dict[int, tuple[Request, int]] = {}  # request number -> (request, events given)

    @property
    def has_work(self) -> bool:
        """Whether anyone is being served."""
        return bool(self._live)

    def add_request(self, request: Request) -> None:
        """Take a request in and note the time."""
        self._live[len(self.received)] = (request, 0)
        self.received.append(self._clock.now())
        self.most = max(self.most, len(self._live))

    def step(self) -> list[StepOutput]:
        """One event for each request."""
        outputs = []
        for number, (request, given) in list(self._live.items()):
            self._clock.advance(self._seconds(number, given))
            silent = self._hello and given == 0
            last = given + 1 == request.sampling.max_tokens + self._hello
            reason = FinishReason.LENGTH if last else None
            if number in self._fails:
                silent, reason = True, FinishReason.ERROR
            outputs.append(StepOutput(request.request_id, () if silent else (SampledToken(97),), reason))
            self._live[number] = (request, given + 1)
            if reason is not None:
                del self._live[number]
        return outputs

    def abort(self, request_id: str) -> None:
        """Drop a request. An unknown id has no effect."""
        self._live = {n: held for n, held in self._live.items() if held[0].request_id != request_id}


def _run(
    generator: Generator,
    schedule: Iterable[float],
    tokens: int,
    seconds: Callable[[int, int], float],
    *,
    fails: Iterable[int] = (),
    hello: bool = False,
) -> tuple[WatchedServer, Claims]:
    clock = VirtualClock()
    server = WatchedServer(clock, seconds, fails=fails, hello=hello)
    requests = tuple(TraceRequest(f"r{i}", at, (40,), tokens) for i, at in enumerate(schedule))
    claims = generator(server, Trace(requests, "given", "1", str(tokens), seed=0), clock)
    return server, claims


def _in_flight(generator: Generator) -> float:
    server, _ = _run(generator, [0.0, 0.25, 0.5, 0.75], 8, lambda *_: 0.125)
    return server.most


def _second_ttft(generator: Generator) -> float:
    _, claims = _run(
        generator, [0.0, 0.5], 2, lambda request, token: 2.0 if (request, token) == (0, 1) else 0.25
    )
    return claims.ttft[1] or 0.0


def _goodput(generator: Generator) -> float:
    _, claims = _run(generator, [5.0 * i for i in range(10)], 4, lambda *_: 0.02, fails={2, 5, 6})
    return 100 * claims.goodput


def _last_lateness(generator: Generator) -> float:
    schedule = [*(i / 5 for i in range(100)), 120.0]
    server, _ = _run(generator, schedule, 1, lambda *_: 0.25)
    return server.received[-1] - schedule[-1]


def _gap_p99(generator: Generator) -> float:
    schedule = [5.0 * i for i in range(10)]
    _, claims = _run(generator, schedule, 21, lambda _, token: 2.0 if token == 10 else 0.02)
    return claims.gap_p99 or 0.0


def _first_ttft(generator: Generator) -> float:
    _, claims = _run(generator, [0.0], 3, lambda _, event: 0.9 if event == 1 else 0.1, hello=True)
    return claims.ttft[0] or 0.0


EXPERIMENTS: dict[str, Experiment] = {
    "closed loop": Experiment(
        "four requests, one due every 0.25 s, on a server that needs at least a second for each",
        "the most requests in flight at once are",
        "",
        _in_flight,
    ),
    "stamped at sending": Experiment(
        "a server that stalls for 2 s over its first request, and a second request due during the stall",
        "the TTFT of the second request is",
        " s",
        _second_ttft,
    ),
    "failures dropped": Experiment(
        "ten requests with nothing else to do, of which three end in an error",
        "the share that met the SLO is",
        " %",
        _goodput,
    ),
    "schedule drifts": Experiment(
        "100 requests, one due every 0.2 s, on a server that is busy for 0.25 s with each; then a quiet "
        "minute, and a last request",
        "the last request comes late by",
        " s",
        _last_lateness,
    ),
    "mean per request": Experiment(
        "ten requests, far apart, of 21 tokens each 0.02 s apart, but with one stall of 2 s in each",
        "the p99 gap is",
        " s",
        _gap_p99,
    ),
    "empty event counted": Experiment(
        "one request; after 0.1 s an event without a token, after 1 s the first token",
        "the TTFT is",
        " s",
        _first_ttft,
    ),
}
"""An experiment for each diagnosis."""
