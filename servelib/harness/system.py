"""What a sweep measures: engines in this process, or anything else that plays a trace."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Literal, Protocol

from servelib.clock import Clock, VirtualClock, WallClock
from servelib.engine.protocol import Engine
from servelib.errors import check_int
from servelib.harness.conditions import Conditions, closed_loop, conditions
from servelib.harness.drive import Progress, drive
from servelib.harness.metrics import SLO
from servelib.harness.records import RunRecord
from servelib.harness.trace import Trace

ClockKind = Literal["wall", "virtual"]
MakeEngine = Callable[[Clock], Engine]
"""Makes a fresh engine on the clock it is given; called once for each run."""


class Session(Protocol):
    """A system under test, made ready for one run."""

    def about(self, trace: Trace, *, runs: int, slo: SLO) -> Conditions:
        """What it is measured under."""
        ...

    def play(
        self,
        trace: Trace,
        *,
        on_progress: Progress | None = None,
        should_stop: Callable[[], bool] | None = None,
    ) -> RunRecord:
        """Run the trace. Raises ``RunError``."""
        ...


class System(Protocol):
    """What a sweep measures: an engine in this process, or a server somewhere."""

    @property
    def is_virtual(self) -> bool:
        """Whether its time is only charged, so that there is nothing to warm up."""
        ...

    def session(self) -> Session:
        """A fresh one for each run."""
        ...


@dataclass(frozen=True, slots=True)
class InProcess:
    """Engines in this process, on wall or virtual time. With ``callers`` the loop is closed."""

    make_engine: MakeEngine
    clock: ClockKind = "wall"
    callers: int | None = None

    def __post_init__(self) -> None:
        if self.callers is not None:
            check_int("callers", self.callers, 1)

    @property
    def is_virtual(self) -> bool:
        """Whether time is virtual."""
        return self.clock == "virtual"

    def session(self) -> Session:
        """An engine on a clock of its own."""
        clock = VirtualClock() if self.is_virtual else WallClock()
        return _Engine(self.make_engine(clock), clock, self.callers)


@dataclass(frozen=True, slots=True)
class _Engine:
    engine: Engine
    clock: Clock
    callers: int | None

    def about(self, trace: Trace, *, runs: int, slo: SLO) -> Conditions:
        if self.callers is not None:
            trace = replace(trace, arrivals=closed_loop(self.callers))
        return conditions(self.engine, trace, runs=runs, slo=slo, virtual=self.clock.is_virtual)

    def play(
        self,
        trace: Trace,
        *,
        on_progress: Progress | None = None,
        should_stop: Callable[[], bool] | None = None,
    ) -> RunRecord:
        return drive(
            self.engine,
            trace,
            self.clock,
            callers=self.callers,
            on_progress=on_progress,
            should_stop=should_stop,
        )
