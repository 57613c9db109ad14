"""The panel "turn the knob": sliders, curves that answer at once, and a button that measures for real.

What the panel computes is in ``curves``; how it runs in the background is in ``background``.
"""

from __future__ import annotations

import threading
from collections.abc import Callable

import ipywidgets as w

from servelib.clock import Clock
from servelib.engine.protocol import Engine
from servelib.harness.records import RunRecord
from servelib.harness.summary import summarise
from servelib.harness.sweep import Point, measure
from servelib.model.config import ModelConfig
from servelib.notebook.background import BackgroundRun, stop_all
from servelib.notebook.curves import Curves, MakeVirtual, Settings, Traffic, naive
from servelib.notebook.knob_figure import KnobFigure
from servelib.notebook.knob_text import describe, describe_measured, duration
from servelib.notebook.panel import Panel, log_slider, range_slider
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


class Knobs(Panel):
    """The panel. Its sliders and buttons are attributes, so that code can turn them too."""

    def __init__(self, curves: Curves, make_engine: MakeReal, settings: Settings, runs: int) -> None:
        self._curves = curves
        self._make_engine = make_engine
        self._n_runs = runs
        self._measured: list[tuple[Traffic, float, list[RunRecord]]] = []
        self._run: BackgroundRun | None = None
        self._lock = threading.RLock()  # the kernel's thread and the run's thread both write to the view
        self.error: Exception | None = None  # of the last real run, for a closer look

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
        self.run_button = w.Button(button_style="primary", icon="play", layout={"width": "auto"})
        self.stop_button = w.Button(
            description="Stop", icon="stop", disabled=True, tooltip="Stop the real run"
        )
        total = curves.requests * runs
        self.progress = w.IntProgress(
            max=total, layout={"visibility": "hidden"}, tooltip="Progress of the real run"
        )
        buttons = w.HBox([self.run_button, self.stop_button, self.progress], layout={"flex_flow": "row wrap"})
        self.run_button.on_click(lambda _: self.start())
        self.stop_button.on_click(lambda _: self.stop())
        super().__init__(
            [self.rate, self.prompt, self.output, self.slo_ttft, self.slo_gap, self.use_cache],
            [self.headline, self.figure.widget, buttons],
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

    @property
    def running(self) -> bool:
        """Whether a real run is on its way."""
        return self._run is not None

    def refresh(self) -> None:
        """Bring headline and figure up to the settings: the headline first, it is the quicker one."""
        with self._lock:
            settings = self.settings
            now = self._curves.at(settings)
            self.headline.value = f'<div role="status">{describe(settings, now)}</div>'
            self._offer = f"Run it for real (about {duration(now.window * self._n_runs)})"
            if not self.running:
                self.run_button.description = self._offer
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
            stop_all()  # of another panel
            settings = self.settings
            self.error = None
            self.run_button.disabled, self.stop_button.disabled = True, False
            self.run_button.description = "Running"
            self.progress.value, self.progress.layout.visibility = 0, "visible"
            self._say("Warming up.")

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

            self._run = BackgroundRun(work, lambda point, error: self._ended(settings, point, error))
            self._run.start()

    def stop(self, wait: float = 0.0) -> bool:
        """Ask the real run to stop, wait up to ``wait`` seconds, and say whether none is left."""
        run = self._run
        if run is None:
            return True
        self._say("Stopping.")
        return run.stop(wait)

    def close(self) -> None:
        """Stop what runs, and take the panel away."""
        self.stop(wait=2.0)
        super().close()

    def _advance(self, ended: int, total: int) -> None:
        with self._lock:
            self.progress.value = ended
            self._say(f"{ended} of {total} requests have ended.")

    def _ended(self, settings: Settings, point: Point | None, error: Exception | None) -> None:
        """In the run's thread: show what came of it."""
        with self._lock:
            self._run = None
            self.run_button.disabled, self.stop_button.disabled = False, True
            self.run_button.description = self._offer
            self.progress.layout.visibility = "hidden"
            self.error = error
            whole = [run for run in point.runs if not run.interrupted] if point else []
            if error is not None:
                self._say(f"The run broke. {type(error).__name__}: {error}", alert=True)
            elif not whole:
                self._say("Stopped before one run was whole: there is nothing to put on the curve.")
            else:
                self._measured.append((settings.traffic, settings.rate, whole))
                self._say(describe_measured(settings, summarise(whole, settings.slo), len(whole)))
                self._moved(None)
