"""A server somewhere as the system under test: the same sweep over HTTP."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime

from servelib.harness.conditions import Conditions, closed_loop, machine
from servelib.harness.drive import Progress
from servelib.harness.http import drive_http
from servelib.harness.metrics import SLO
from servelib.harness.records import RunRecord
from servelib.harness.target import Target, TextCodec
from servelib.harness.trace import Trace


@dataclass(frozen=True, slots=True)
class Remote:
    """``target`` as a ``System`` for ``sweep_system``. With ``callers`` the loop is closed."""

    target: Target
    codec: TextCodec | None = None
    callers: int | None = None

    is_virtual = False

    def session(self) -> Remote:
        """The server keeps its state between runs; there is nothing to make."""
        return self

    def about(self, trace: Trace, *, runs: int, slo: SLO) -> Conditions:
        """What is measured, from where."""
        return Conditions(
            model=self.target.model,
            parameters=None,
            engine=self.target.address,
            clock="wall",
            machine=machine(),
            torch=None,
            cost=None,
            arrivals=trace.arrivals if self.callers is None else closed_loop(self.callers),
            prompt=trace.prompt,
            output=trace.output,
            seed=trace.seed,
            rates=() if trace.rate is None else (float(trace.rate),),
            requests=len(trace.requests),
            runs=runs,
            slo_ttft=slo.ttft,
            slo_gap=slo.gap,
            measured=datetime.now(UTC).isoformat(timespec="seconds"),
        )

    def play(
        self,
        trace: Trace,
        *,
        on_progress: Progress | None = None,
        should_stop: Callable[[], bool] | None = None,
    ) -> RunRecord:
        """Send it."""
        return drive_http(
            self.target,
            trace,
            callers=self.callers,
            codec=self.codec,
            on_progress=on_progress,
            should_stop=should_stop,
        )
