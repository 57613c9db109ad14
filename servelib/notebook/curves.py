"""What the knobs turn: settings, and the load curve that they give in virtual time. No widgets here."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from servelib.clock import Clock, VirtualClock
from servelib.engine.naive import NaiveEngine
from servelib.engine.protocol import Engine, Model
from servelib.harness.drive import drive
from servelib.harness.metrics import SLO, RunMetrics, run_metrics
from servelib.harness.records import RunRecord
from servelib.harness.trace import Uniform, Workload
from servelib.model.config import ModelConfig
from servelib.sim.cost import StepCost
from servelib.sim.model import CostedModel

GRID = tuple(round(2.0 ** (half / 2), 4) for half in range(-4, 9))
"""Arrival rates of a curve: 0.25 to 16 requests/s, two to each doubling."""

MakeVirtual = Callable[[Model, Clock, bool], Engine]
"""Makes the engine of the curve from a costed model, its clock, and whether to use a cache."""

Traffic = tuple[tuple[int, int], tuple[int, int], bool]
"""What decides a run beside its rate: prompt lengths, output lengths, cache."""


def naive(model: Model, clock: Clock, use_cache: bool) -> Engine:
    """The engine of chapter 1."""
    return NaiveEngine(model, use_cache=use_cache, clock=clock)


@dataclass(frozen=True, slots=True)
class Settings:
    """One position of all knobs. Rates in requests/s, lengths in tokens (both ends included), SLO in s."""

    rate: float = 4.0
    prompt: tuple[int, int] = (32, 96)
    output: tuple[int, int] = (16, 48)
    slo_ttft: float = 1.0
    slo_gap: float = 0.05
    use_cache: bool = False

    @property
    def slo(self) -> SLO:
        """The service-level objective."""
        return SLO(self.slo_ttft, self.slo_gap)

    @property
    def traffic(self) -> Traffic:
        """What two runs must share to be comparable at the same rate."""
        return (self.prompt, self.output, self.use_cache)


class Curves:
    """Answers settings with metrics, in virtual time, and remembers the runs.

    A run depends on the traffic and the rate alone, so moving the rate costs at most one run and
    moving the SLO none. Only the runs of the last traffic are kept.
    """

    def __init__(
        self,
        cost: StepCost,
        config: ModelConfig,
        *,
        requests: int = 24,
        seed: int = 7,
        make_engine: MakeVirtual = naive,
    ) -> None:
        self.requests = requests
        self.seed = seed
        self._cost = cost
        self._config = config
        self._make_engine = make_engine
        self._traffic: Traffic | None = None
        self._workload = Workload()
        self._runs: dict[float, RunRecord] = {}

    def workload(self, settings: Settings) -> Workload:
        """The workload that the curve and the real run share."""
        return Workload(Uniform(*settings.prompt), Uniform(*settings.output), self.requests, self.seed)

    def at(self, settings: Settings) -> RunMetrics:
        """The metrics at the settings' own arrival rate."""
        return run_metrics(self._run(settings, settings.rate), settings.slo)

    def curve(self, settings: Settings) -> list[tuple[float, RunMetrics]]:
        """Metrics at every rate of the grid and at the settings' own, in rising order of rate."""
        rates: Sequence[float] = sorted({*GRID, settings.rate})
        return [(rate, run_metrics(self._run(settings, rate), settings.slo)) for rate in rates]

    def _run(self, settings: Settings, rate: float) -> RunRecord:
        if settings.traffic != self._traffic:
            self._traffic, self._workload = settings.traffic, self.workload(settings)
            self._runs.clear()
        if rate not in self._runs:
            clock = VirtualClock()
            engine = self._make_engine(
                CostedModel(self._config, self._cost, clock), clock, settings.use_cache
            )
            self._runs[rate] = drive(engine, self._workload.trace(rate), clock)
        return self._runs[rate]
