"""The panel of chapter 6: engine, rate and how many at once; curves in virtual time, and a real run."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import ipywidgets as w

from servelib.clock import Clock, VirtualClock
from servelib.engine.protocol import Engine
from servelib.engine.registry import ServedModel, make_engine
from servelib.harness.drive import drive
from servelib.harness.lengths import Uniform
from servelib.harness.metrics import SLO, RunMetrics, run_metrics
from servelib.harness.records import RunRecord
from servelib.harness.summary import Summary, summarise
from servelib.harness.sweep import Point, measure
from servelib.harness.trace import Workload
from servelib.notebook.background import stop_all
from servelib.notebook.knob_figure import KnobFigure
from servelib.notebook.knob_text import duration
from servelib.notebook.panel import dropdown, log_slider, pick_slider, range_slider
from servelib.notebook.run_panel import RunPanel
from servelib.sim.cost import Cost
from servelib.sim.model import CostedModel

GRID = tuple(2.0**half for half in range(8))
"""Arrival rates of a curve: 1 to 128 requests/s."""
ENGINES = (("continuous", "continuous"), ("static", "static"), ("cached, one at a time", "cached"))
AT_ONCE = (1, 2, 4, 8, 16, 32, 64)
TOKENS = (128, 256, 512, 1024, 2048, 4096)


@dataclass(frozen=True, slots=True)
class Setting:
    """What decides a run beside its rate: the engine with its options, and the lengths of the outputs."""

    engine: str
    options: tuple[tuple[str, int], ...]
    output: tuple[int, int]

    def make(self, model: ServedModel, clock: Clock) -> Engine:
        """The engine."""
        return make_engine(self.engine, model, clock, None, **dict(self.options))

    def workload(self, requests: int) -> Workload:
        """The reference workload, with these outputs."""
        return Workload(output=Uniform(*self.output), requests=requests)


def batch_knobs(
    model: ServedModel, cost: Cost, *, requests: int = 48, runs: int = 3, rate: float = 16.0
) -> BatchKnobs:
    """Show the panel: make it the last line of a cell.

    The curves are virtual time under ``cost``; the button measures ``model`` on the wall clock, ``runs``
    times. Stops the run of a panel made earlier.
    """
    stop_all()
    return BatchKnobs(model, cost, requests, runs, rate)


class BatchKnobs(RunPanel):
    """The panel. Its sliders and buttons are attributes, so that code can turn them too."""

    def __init__(self, model: ServedModel, cost: Cost, requests: int, runs: int, rate: float) -> None:
        self._model, self._cost, self._requests, self._n_runs = model, cost, requests, runs
        self._virtual: dict[tuple[Setting, float], RunRecord] = {}
        self._measured: dict[Setting, list[tuple[float, Summary]]] = {}

        self.rate = log_slider("arrival rate (requests/s)", rate, 1, 128)
        self.engine = dropdown("engine", "continuous", ENGINES)
        self.max_num_seqs = pick_slider("max_num_seqs", 64, AT_ONCE)
        self.tokens = pick_slider("tokens of a step", 2048, TOKENS)
        self.batch_size = pick_slider("batch size", 8, AT_ONCE)
        self.output = range_slider("output length (tokens)", (16, 48), 128)
        self.headline, self.figure = w.HTML(), KnobFigure(GRID[0], GRID[-1])
        controls = [self.rate, self.engine, self.max_num_seqs, self.tokens, self.batch_size, self.output]
        super().__init__(
            controls,
            [self.headline, self.figure.widget],
            requests=requests * runs,
            offer=f"Run it for real, {runs} times {requests} requests",
        )
        self.refresh()

    @property
    def setting(self) -> Setting:
        """Where the knobs stand, but for the rate."""
        options: tuple[tuple[str, int], ...] = ()
        if self.engine.value == "static":
            options = (("batch_size", self.batch_size.value),)
        elif self.engine.value == "continuous":
            most = self.max_num_seqs.value
            tokens = max(self.tokens.value, most)  # the least that the engine takes
            options = (("max_num_seqs", most), ("max_num_batched_tokens", tokens))
        return Setting(self.engine.value, options, tuple(self.output.value))

    def refresh(self) -> None:
        """Bring headline and figure up to the knobs."""
        with self._lock:
            setting, rate = self.setting, round(self.rate.value, 4)
            self.batch_size.disabled = setting.engine != "static"
            self.max_num_seqs.disabled = self.tokens.disabled = setting.engine != "continuous"
            now = self._at(setting, rate)
            self.headline.value = f'<div role="status">{_said(rate, now)} {_took(now, self._n_runs)}</div>'
            curve = [(at, self._at(setting, at)) for at in sorted({*GRID, rate})]
            self.figure.show(curve, rate, now, self._measured.get(setting, []))

    def start(self) -> None:
        """Start the real run, unless one is on its way."""
        with self._lock:
            if self.running:
                return
            setting, rate = self.setting, round(self.rate.value, 4)

            def work(should_stop: Callable[[], bool]) -> Point:
                return measure(
                    lambda clock: setting.make(self._model, clock),
                    setting.workload(self._requests),
                    rate,
                    runs=self._n_runs,
                    on_progress=self._advance,
                    should_stop=should_stop,
                )

            def show(whole: list[RunRecord]) -> str:
                found = summarise(whole, SLO())
                self._measured.setdefault(setting, []).append((rate, found))
                return f"Measured, {len(whole)} runs: {_said(rate, found)}"

            self._begin(work, show)

    def _at(self, setting: Setting, rate: float) -> RunMetrics:
        if (setting, rate) not in self._virtual:
            clock = VirtualClock()
            model = CostedModel(self._model.config, self._cost, clock)
            trace = setting.workload(self._requests).trace(rate)
            self._virtual[setting, rate] = drive(setting.make(model, clock), trace, clock)
        return run_metrics(self._virtual[setting, rate])


def _said(rate: float, found: RunMetrics | Summary) -> str:
    """The numbers in words."""

    def number(name: str, spec: str, scale: float = 1.0) -> str:
        seen = getattr(found, name)
        value = seen if isinstance(found, RunMetrics) else seen.value
        return "undefined" if value is None else format(scale * value, spec)

    return (
        f"At {rate:.3g} requests/s: {number('output_tokens_per_second', '.0f')} output tokens/s, TTFT p99 "
        f"{number('ttft_p99', '.3g')} s, gap p99 {number('gap_p99', '.3g', 1e3)} ms, goodput "
        f"{number('goodput_fraction', '.0f', 100)} %."
    )


def _took(now: RunMetrics, runs: int) -> str:
    return f"(Virtual time; a real run takes about {duration(now.window * runs)}.)"
