"""The knobs' figure: three panels over the arrival rate, updated in place so that it never flickers."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import plotly.graph_objects as go
from plotly.subplots import make_subplots

from servelib.harness.metrics import RunMetrics
from servelib.harness.stats import Estimate
from servelib.harness.summary import Summary
from servelib.notebook.figures import PALETTE, base_layout
from servelib.notebook.panel import live

_PANELS = (
    ("output_tokens_per_second", "output rate (tokens/s)", "blue"),
    ("ttft_p50", "TTFT p50 (seconds)", "orange"),
    ("goodput_fraction", "goodput (fraction of requests)", "green"),
)


class KnobFigure:
    """A ``FigureWidget``; ``show`` moves its lines. Three traces a panel: curve, here, measured.

    ``low`` and ``high`` are the ends of its arrival rates.
    """

    def __init__(self, low: float = 0.25, high: float = 16.0) -> None:
        figure = make_subplots(
            rows=1, cols=3, horizontal_spacing=0.07, subplot_titles=[title for _, title, _ in _PANELS]
        )
        for column, (_, _, colour) in enumerate(_PANELS, start=1):
            for trace in _traces(PALETTE[colour], legend=column == 1):
                figure.add_trace(trace, row=1, col=column)
        ticks = [t for t in (0.25, 1, 4, 16, 64) if low <= t <= high]  # room for them in a narrow window
        figure.update_xaxes(
            type="log", tickvals=ticks, ticktext=[f"{tick:g}" for tick in ticks], tickangle=0,
            title={"text": "arrival rate (requests/s)", "standoff": 4},
            range=[math.log10(low) - 0.08, math.log10(high) + 0.08],
        )  # fmt: skip
        figure.update_yaxes(rangemode="tozero")
        figure.update_yaxes(range=[-0.04, 1.04], tickformat=".1f", col=3)
        figure.update_layout(
            base_layout(alt="", height=330, legend={"orientation": "h", "y": -0.24, "x": 0}, hovermode="x")
        )
        figure.update_layout(margin={"l": 40, "t": 32})
        self.widget = live(figure)

    def show(
        self,
        curve: Sequence[tuple[float, RunMetrics]],
        rate: float,
        now: RunMetrics,
        measured: Sequence[tuple[float, Summary]],
    ) -> None:
        """Draw ``curve``, a mark at ``rate``, and the measured points with their intervals.

        An undefined value leaves a hole in its line.
        """
        rates = [at for at, _ in curve]
        figure = self.widget
        with figure.batch_update():
            for panel, (name, _, _) in enumerate(_PANELS):
                line, here, real = figure.data[3 * panel : 3 * panel + 3]
                line.x, line.y = rates, [getattr(metrics, name) for _, metrics in curve]
                here.x, here.y = [rate], [getattr(now, name)]
                estimates: list[Estimate] = [getattr(summary, name) for _, summary in measured]
                real.x, real.y = [at for at, _ in measured], [estimate.value for estimate in estimates]
                real.error_y.array = [_arm(estimate, 1) for estimate in estimates]
                real.error_y.arrayminus = [_arm(estimate, 0) for estimate in estimates]
            figure.data[2].showlegend = bool(measured)
            figure.layout.meta = {"alt": _alt(rate, now)}


def _traces(colour: str, *, legend: bool) -> list[Any]:
    # Told apart by shape as well as by colour: a line, a filled disc, an open diamond with arms.
    return [
        go.Scatter(
            mode="lines", line={"color": colour, "width": 2}, name="virtual time",
            showlegend=legend, legendgroup="curve", hovertemplate="%{x:.3g}/s: %{y:.3~g}<extra></extra>",
        ),
        go.Scatter(
            mode="markers", marker={"color": colour, "size": 13}, name="the knob",
            showlegend=legend, legendgroup="here", hoverinfo="skip",
        ),
        go.Scatter(
            mode="markers", name="measured, with 95 % interval",
            marker={"color": PALETTE["purple"], "size": 12, "symbol": "diamond-open", "line": {"width": 2.5}},
            error_y={"type": "data", "symmetric": False, "color": PALETTE["purple"], "width": 6},
            showlegend=False, legendgroup="measured",
            hovertemplate="measured at %{x:.3g}/s: %{y:.3~g}<extra></extra>",
        ),
    ]  # fmt: skip


def _arm(estimate: Estimate, side: int) -> float:
    """How far the interval reaches down (0) or up (1) from the value; 0 without an interval."""
    if estimate.value is None or estimate.interval is None:
        return 0.0
    return abs(estimate.interval[side] - estimate.value)


def _alt(rate: float, now: RunMetrics) -> str:
    values = [getattr(now, name) for name, _, _ in _PANELS]
    shown = ["undefined" if value is None else f"{value:.3g}" for value in values]
    facts = ", ".join(f"{title} {value}" for (_, title, _), value in zip(_PANELS, shown, strict=True))
    return f"Three curves against the arrival rate. At {rate:.3g} requests/s: {facts}."
