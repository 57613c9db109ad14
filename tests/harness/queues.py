"""Single-server queues whose theory is known: real engines under the virtual clock, and bare records."""

from __future__ import annotations

import math
import random
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field

from worlds import record, run_of

from servelib.clock import Clock, VirtualClock
from servelib.harness.records import RunRecord
from servelib.model.scripted import ScriptedModel
from servelib.request import FinishReason, Request, SampledToken, StepOutput, seed_from


@dataclass
class SingleServer:
    """Serves one request at a time, in order; each takes ``seconds`` of its id and has one token."""

    clock: Clock
    seconds: Callable[[str], float]
    name: str = "single server"
    model: ScriptedModel = field(default_factory=lambda: ScriptedModel([97]))
    queue: deque[str] = field(default_factory=deque)

    @property
    def has_work(self) -> bool:
        return bool(self.queue)

    def add_request(self, request: Request) -> None:
        self.queue.append(request.request_id)

    def step(self) -> list[StepOutput]:
        if not self.queue:
            return []
        request_id = self.queue.popleft()
        assert isinstance(self.clock, VirtualClock)
        self.clock.advance(self.seconds(request_id))
        return [StepOutput(request_id, (SampledToken(97),), FinishReason.LENGTH)]

    def abort(self, request_id: str) -> None:
        pass


def exponential(mean: float) -> Callable[[str], float]:
    """A service time for each request id, the same whenever it is asked for."""
    return lambda request_id: -mean * math.log1p(-seed_from(f"service:{request_id}") / 2**64)


def mm1_run(rho: float, n: int, seed: int) -> RunRecord:
    """An M/M/1 queue with service rate 1, without an engine: quick enough for thousands of runs."""
    rng, time, free = random.Random(seed), 0.0, 0.0
    records = []
    for _ in range(n):
        time += rng.expovariate(rho)
        free = max(time, free) + rng.expovariate(1.0)
        records.append(record([(free, 1)], scheduled=time))
    return run_of(*records)
