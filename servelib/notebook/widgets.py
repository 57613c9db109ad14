"""The panel "turn the knob": sliders, curves that answer at once, and a button that measures for real.

What the panel computes is in ``curves``; how a real run goes on is in ``run_panel``.
"""

from __future__ import annotations

from collections.abc import Callable

import ipywidgets as w

from servelib.clock import Clock
from servelib.engine.protocol import Engine
from servelib.harness.records import RunRecord
from servelib.harness.summary import summarise
from servelib.harness.sweep import Point, measure
from servelib.model.config import ModelConfig
from servelib.notebook.background import stop_all
from servelib.notebook.curves import Curves, MakeVirtual, Settings, Traffic, naive
from servelib.notebook.knob_figure import KnobFigure
from servelib.notebook.knob_text import describe, describe_measured, duration
from servelib.notebook.panel import log_slider, range_slider
from servelib.notebook.run_panel import RunPanel
from servelib.sim.cost import StepCost

MakeReal = Callable[[Clock, bool], Engine]
"""Makes the engine to measure, from a clock and whether to use a cache."""


def knobs(
    *,
    cost: StepCost,
    make_engine: MakeReal,
    model_config: ModelConfig,
    settings: Settings = Settings(),  # noqa: B008 - frozen
    requests: int = 24,
    runs: int = 3,
    seed: int = 7,
    make_virtual: MakeVirtual = naive,
) -> Knobs:
    """Show the panel: make it the last line of a cell.

    The curves are virtual time under ``cost``; the button measures ``make_engine`` on the wall
    clock, ``runs`` times, on the same requests. Stops the run of a panel made earlier.
    """
    stop_all()
    curves = Curves(cost, model_config, requests=requests, seed=seed, make_engine=make_virtual)
    return Knobs(curves, make_engine, settings, runs)


class Knobs(RunPanel):
    """The panel. Its sliders and buttons are attributes, so that code can turn them too."""

    def __init__(self, curves: Curves, make_engine: MakeReal, settings: Settings, runs: int) -> None:
        self._curves = curves
        self._make_engine = make_engine
        self._n_runs = runs
        self._measured: list[tuple[Traffic, float, list[RunRecord]]] = []

        self.rate = log_slider("arrival rate (requests/s)", settings.rate, 0.25, 16)
        self.prompt = range_slider("prompt length (tokens)", settings.prompt, 512)
        self.output = range_slider("output length (tokens)", settings.output, 128)
        self.slo_ttft = log_slider("SLO: first token within (s)", settings.slo_ttft, 0.125, 8)
        self.slo_gap = log_slider("SLO: gaps within (s)", settings.slo_gap, 0.00625, 0.4)
        self.use_cache = w.Checkbox(
            value=settings.use_cache, description="keep keys and values (cache)", indent=False
        )
        self.figure = KnobFigure()
        self.headline = w.HTML()
        super().__init__(
            [self.rate, self.prompt, self.output, self.slo_ttft, self.slo_gap, self.use_cache],
            [self.headline, self.figure.widget],
            requests=curves.requests * runs,
            offer="",  # says how long it takes: see refresh
        )
        self.refresh()

    @property
    def settings(self) -> Settings:
        """Where the knobs stand."""
        return Settings(
            round(self.rate.value, 4),  # so that a rate of the grid is found again
            tuple(self.prompt.value),
            tuple(self.output.value),
            self.slo_ttft.value,
            self.slo_gap.value,
            self.use_cache.value,
        )

    def refresh(self) -> None:
        """Bring headline and figure up to the settings: the headline first, it is the quicker one."""
        with self._lock:
            settings = self.settings
            now = self._curves.at(settings)
            self.headline.value = f'<div role="status">{describe(settings, now)}</div>'
            self.offer = f"Run it for real (about {duration(now.window * self._n_runs)})"
            if not self.running:
                self.run_button.description = self.offer
            points = [
                (rate, summarise(runs, settings.slo))
                for traffic, rate, runs in self._measured
                if traffic == settings.traffic
            ]
            self.figure.show(self._curves.curve(settings), settings.rate, now, points)

    def start(self) -> None:
        """Start the real run, unless one is on its way."""
        with self._lock:
            if self.running:
                return
            settings = self.settings
            self.run_button.description = "Running"

            def work(should_stop: Callable[[], bool]) -> Point:
                return measure(
                    lambda clock: self._make_engine(clock, settings.use_cache),
                    self._curves.workload(settings),
                    settings.rate,
                    runs=self._n_runs,
                    slo=settings.slo,
                    on_progress=self._advance,
                    should_stop=should_stop,
                )

            def show(whole: list[RunRecord]) -> str:
                self._measured.append((settings.traffic, settings.rate, whole))
                return describe_measured(settings, summarise(whole, settings.slo), len(whole))

            self._begin(work, show)
