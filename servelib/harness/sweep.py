"""Repeated runs at one arrival rate, or over many, and what they say together."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from servelib.errors import InvalidRequestError, check_int
from servelib.harness.conditions import Conditions, where
from servelib.harness.drive import Progress, RunError, shifted
from servelib.harness.metrics import SLO
from servelib.harness.records import RunRecord
from servelib.harness.summary import Summary, summarise
from servelib.harness.system import ClockKind, InProcess, MakeEngine, System
from servelib.harness.trace import TraceSource, Workload

WARMUP_REQUESTS = 2


@dataclass(slots=True)
class Point:
    """What was seen at one arrival rate: every run, their summary, and the conditions."""

    rate: float
    runs: list[RunRecord]
    summary: Summary
    conditions: Conditions

    @property
    def where(self) -> str:
        """For a sentence: ``at 4/s``, ``all at once``, ``with 2 callers``."""
        return where(self.rate, self.conditions.arrivals)

    @property
    def label(self) -> str:
        """For a heading: ``4 req/s``, ``all at once``, ``2 callers``."""
        said = self.where
        return said.removeprefix("with ") if not said.startswith("at ") else f"{self.rate:.4g} req/s"


class SweepError(RuntimeError):
    """A run broke. ``points`` holds everything measured until then, the broken run included."""

    def __init__(self, message: str, points: list[Point]) -> None:
        super().__init__(message)
        self.points = points


def measure(
    make_engine: MakeEngine,
    workload: Workload,
    rate: float,
    *,
    runs: int = 3,
    slo: SLO = SLO(),  # noqa: B008 - frozen
    clock: ClockKind = "wall",
    warmup: int = WARMUP_REQUESTS,
    on_progress: Progress | None = None,
    should_stop: Callable[[], bool] | None = None,
) -> Point:
    """Run ``workload`` ``runs`` times at ``rate`` requests/s. As ``sweep``, for one rate."""
    return sweep(
        make_engine,
        workload,
        [rate],
        runs=runs,
        slo=slo,
        clock=clock,
        warmup=warmup,
        on_progress=on_progress,
        should_stop=should_stop,
    )[0]


def sweep(
    make_engine: MakeEngine,
    workload: Workload,
    rates: Sequence[float],
    *,
    runs: int = 3,
    slo: SLO = SLO(),  # noqa: B008 - frozen
    clock: ClockKind = "wall",
    warmup: int = WARMUP_REQUESTS,
    on_progress: Progress | None = None,
    should_stop: Callable[[], bool] | None = None,
) -> list[Point]:
    """As ``sweep_system``, over engines in this process."""
    return sweep_system(
        InProcess(make_engine, clock),
        workload,
        rates,
        runs=runs,
        slo=slo,
        warmup=warmup,
        on_progress=on_progress,
        should_stop=should_stop,
    )


def sweep_system(
    system: System,
    workload: TraceSource,
    rates: Sequence[float],
    *,
    runs: int = 3,
    slo: SLO = SLO(),  # noqa: B008 - frozen
    warmup: int = WARMUP_REQUESTS,
    on_progress: Progress | None = None,
    should_stop: Callable[[], bool] | None = None,
) -> list[Point]:
    """Run ``workload`` ``runs`` times at each rate; one point a rate, in the order given.

    Run k is drawn with seed + k at every rate. Repeats are interleaved: one goes up the rates, the
    next comes down, so that a machine that drifts does not pass for an effect of the rate. On the
    wall clock ``warmup`` requests with other prompts run first and are not counted.
    ``on_progress`` gets (requests ended, requests in all). Stopped early, it returns the rates that
    were reached, the last run marked ``interrupted``. Raises ``InvalidRequestError`` before it runs
    anything, and ``SweepError``, with what was measured, when a run breaks.
    """
    check_int("runs", runs, 1)
    check_int("warmup", warmup, 0)
    if not rates:
        raise InvalidRequestError("rates", rates, "at least one arrival rate")
    traces = [[workload.trace(rate, run) for run in range(runs)] for rate in rates]
    about: dict[int, Conditions] = {}
    seen: list[list[RunRecord]] = [[] for _ in rates]
    total = sum(len(trace.requests) for row in traces for trace in row)
    done, record = 0, None

    def points() -> list[Point]:
        return [
            Point(rate, seen[i], summarise(seen[i], slo), replace(about[i], runs=len(seen[i])))
            for i, rate in enumerate(rates)
            if seen[i]
        ]

    if warmup and not system.is_virtual:
        try:
            warm = system.session().play(workload.warmup(warmup), should_stop=should_stop)
        except RunError as error:
            raise SweepError(f"while warming up, {error}", []) from error
        if warm.interrupted:
            should_stop = _at_once  # the first run then holds every request, none of them sent
    try:
        for run in range(runs):
            upwards = range(len(rates))
            for i in upwards if run % 2 == 0 else reversed(upwards):
                if record is not None and should_stop is not None and should_stop():  # between two runs
                    record.interrupted = True
                    return points()
                session = system.session()
                if i not in about:
                    same = runs > 1 and traces[i][0].seed == traces[i][1].seed
                    about[i] = replace(session.about(traces[i][0], runs=runs, slo=slo), one_trace=same)
                record = session.play(
                    traces[i][run],
                    on_progress=shifted(on_progress, done, total),
                    should_stop=should_stop,
                )
                seen[i].append(record)
                done += len(record.requests)
                if record.interrupted:
                    return points()
    except RunError as error:
        seen[i].append(error.record)
        raise SweepError(str(error), points()) from error
    except KeyboardInterrupt:  # between two runs
        if record is None:
            raise
        record.interrupted = True
    return points()


def _at_once() -> bool:
    return True
