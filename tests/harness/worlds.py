"""Small worlds in virtual time, in which every answer can be worked out by hand."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from servelib.clock import VirtualClock
from servelib.engine.naive import NaiveEngine
from servelib.harness.records import Outcome, RequestRecord, RunRecord
from servelib.harness.trace import Trace, TraceRequest
from servelib.model.scripted import ScriptedModel
from servelib.request import FinishReason, Request, RequestState, SampledToken, StepOutput


@dataclass(frozen=True)
class At:
    """Arrivals at the times given."""

    schedule: Sequence[float]
    label: str = "given"

    def times(self, n: int, rng: random.Random) -> list[float]:
        return list(self.schedule[:n])


def trace_of(*requests: tuple[float, int], prompt: int = 4) -> Trace:
    """A trace from (scheduled, output tokens) pairs."""
    made = tuple(
        TraceRequest(f"r{i}", at, tuple(range(40, 40 + prompt)), out) for i, (at, out) in enumerate(requests)
    )
    return Trace(made, "given", str(prompt), "given", seed=0)


def timed_engine(clock: VirtualClock, seconds: Callable[[RequestState], float]) -> NaiveEngine:
    """A naive engine whose every step takes what ``seconds`` says of the request it serves."""

    def script(state: RequestState) -> int:
        clock.advance(seconds(state))
        return 97

    return NaiveEngine(ScriptedModel(script), clock=clock)


@dataclass
class ScriptedEngine:
    """Gives back ``script``, one list of outputs a step; each step takes ``seconds``."""

    clock: VirtualClock
    script: list[list[StepOutput]]
    seconds: float = 1.0
    name: str = "scripted"
    aborted: list[str] = field(default_factory=list)
    model: ScriptedModel = field(default_factory=lambda: ScriptedModel([97]))

    @property
    def has_work(self) -> bool:
        return bool(self.script)

    def add_request(self, request: Request) -> None:
        pass

    def step(self) -> list[StepOutput]:
        self.clock.advance(self.seconds)
        return self.script.pop(0)

    def abort(self, request_id: str) -> None:
        self.aborted.append(request_id)


def out(
    request_id: str, tokens: int, reason: FinishReason | None = None, error: str | None = None
) -> StepOutput:
    return StepOutput(request_id, (SampledToken(97),) * tokens, reason, error)


def record(
    events: Sequence[tuple[float, int]],
    *,
    scheduled: float = 0.0,
    outcome: Outcome = Outcome.OK,
    requested: int | None = None,
) -> RequestRecord:
    made = RequestRecord("r", scheduled, 4, requested or sum(n for _, n in events), sent=scheduled)
    made.events = list(events)
    made.end = events[-1][0] if events else scheduled
    made.outcome = outcome
    return made


def run_of(*records: RequestRecord, duration: float | None = None) -> RunRecord:
    ends = [r.end for r in records if r.end is not None]
    return RunRecord(0, "-", list(records), max(ends, default=0.0) if duration is None else duration)
