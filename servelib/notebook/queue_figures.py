"""Waiting against load: one figure for the page, theory and simulation in it, and one for a live panel."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import plotly.graph_objects as go

from servelib.harness.stats import Estimate
from servelib.notebook.figures import PALETTE, base_layout
from servelib.notebook.panel import live
from servelib.sim.queueing import mg1_wait

SPREADS = (0.0, 0.25, 0.5, 1.0, 2.0, 4.0)
"""Squared coefficients of variation of service times, a frame each."""
UTILISATIONS = tuple(i / 20 for i in range(1, 20))
"""0.05 to 0.95, where the simulation is run."""
_FINE = tuple(i / 200 for i in range(191))  # the theory line: 0 to 0.95
_KNOWN = {0.0: "always the same", 1.0: "exponential"}

Waits = Mapping[float, Estimate]
"""Utilisation -> mean wait in units of the mean service time."""


def waiting_curve(
    simulated: Mapping[float, Waits], *, alt: str, start: float = 1.0, top: float = 30.0
) -> go.Figure:
    """Mean wait, in units of the mean service time, against utilisation: a frame a spread.

    ``simulated`` maps each spread (cv2) to what was simulated there; the theory line is worked out
    here. ``start`` is the spread shown first. The vertical axis is the same in all frames, up to
    ``top``, so that the bend is seen to move; what is higher leaves the figure, and the frame's name
    gives its number. The line of exponential service stays as a yardstick.
    """
    spreads = list(simulated)
    first = spreads.index(start)
    yardstick = {
        "mode": "lines",
        "line": {"color": PALETTE["grey"], "width": 1.5, "dash": "dot"},
        "name": "exponential service (cv² = 1)",
    }
    fig = go.Figure(layout=base_layout(alt=alt, height=460))
    fig.add_scatter(x=_FINE, y=_theory(1.0), hoverinfo="skip", **yardstick)
    fig.add_scatter(
        x=_FINE, y=_theory(start), mode="lines", line={"color": PALETTE["blue"], "width": 2.5}, name="theory",
        hovertemplate="utilisation %{x:.2f}: %{y:.3g} services<extra>theory</extra>",
    )  # fmt: skip
    fig.add_trace(go.Scatter(**_points(simulated[start]), **_simulated_look()))
    fig.update_xaxes(title="utilisation (arrival rate × mean service time)", range=[0, 1])
    fig.update_yaxes(title="mean wait<br>in mean service times", range=[-0.03 * top, top])
    fig.update_layout(legend={"x": 0.02, "y": 0.98})
    fig.layout.meta = {"alt": alt, "control": {"label": "spread of service times", "initial": first}}
    fig.frames = [
        go.Frame(
            name=frame_name(spread, waits),
            traces=[1, 2],
            data=[go.Scatter(x=_FINE, y=_theory(spread)), go.Scatter(**_points(waits))],
        )
        for spread, waits in simulated.items()
    ]
    return fig


def frame_name(spread: float, waits: Waits) -> str:
    """A frame in words: the spread, and the wait at the busiest point simulated."""
    busiest = max(waits)
    law = f" ({_KNOWN[spread]})" if spread in _KNOWN else ""
    return (
        f"cv² {spread:g}{law}: at utilisation {busiest:g} the mean wait is "
        f"{mg1_wait(busiest, 1.0, spread):.1f} services in theory, {interval_text(waits[busiest])} simulated"
    )


def interval_text(estimate: Estimate, spec: str = ".1f") -> str:
    """A value with its interval, in words."""
    if estimate.value is None:
        return "undefined"
    shown = format(estimate.value, spec)
    if estimate.interval is not None:
        shown += f" [{format(estimate.interval[0], spec)}, {format(estimate.interval[1], spec)}]"
    return shown


class WaitFigure:
    """The live panel's figure: mean wait in seconds against the arrival rate, updated in place.

    Its axes stand still, so that a moved knob is seen as a moved line. What is beyond the top is
    marked at the edge.
    """

    def __init__(self, *, rate_high: float, wait_high: float) -> None:
        self.wait_high = wait_high
        figure = go.Figure(layout=base_layout(alt="", height=360, hovermode="x"))
        figure.add_scatter(
            mode="lines", line={"color": PALETTE["blue"], "width": 2.5}, name="theory",
            hovertemplate="%{x:.3g}/s: %{y:.3~g} s<extra>theory</extra>",
        )  # fmt: skip
        figure.add_trace(go.Scatter(**_simulated_look()))
        figure.add_scatter(
            mode="markers",
            marker={"color": PALETTE["purple"], "size": 14},
            name="the knobs",
            hoverinfo="skip",
        )
        figure.update_xaxes(title="arrival rate (requests/s)", range=[0, 1.02 * rate_high])
        figure.update_yaxes(title="mean wait (s)", range=[-0.03 * wait_high, 1.06 * wait_high])
        figure.update_layout(legend={"orientation": "h", "y": -0.24, "x": 0})
        self.widget = live(figure)

    def show(
        self,
        theory: Sequence[tuple[float, float]],
        simulated: Mapping[float, Estimate],
        here: tuple[float, float | None],
        alt: str,
    ) -> None:
        """Draw (rate, wait) pairs in seconds, the simulated points, and where the knobs stand.

        ``here`` holds None for a wait that has no mean.
        """
        rate, wait = here
        inside = wait is not None and wait <= self.wait_high
        figure = self.widget
        with figure.batch_update():
            line, points, knob = figure.data
            line.x, line.y = [x for x, _ in theory], [y for _, y in theory]
            points.update(_points(simulated))
            knob.x, knob.y = [rate], [wait if inside else self.wait_high]
            knob.marker.symbol = "circle" if inside else "triangle-up"
            figure.layout.meta = {"alt": alt}


def _theory(spread: float) -> list[float]:
    return [mg1_wait(utilisation, 1.0, spread) for utilisation in _FINE]


def _points(waits: Mapping[float, Estimate]) -> dict[str, Any]:
    estimates = list(waits.values())
    return {
        "x": list(waits),
        "y": [e.value for e in estimates],
        "error_y": {
            "array": [0.0 if e.value is None or e.high is None else e.high - e.value for e in estimates],
            "arrayminus": [0.0 if e.value is None or e.low is None else e.value - e.low for e in estimates],
        },
    }


def _simulated_look() -> dict[str, Any]:
    return {
        "mode": "markers",
        "name": "simulated, with 95 % interval",
        "marker": {"color": PALETTE["orange"], "size": 9, "symbol": "square-open", "line": {"width": 2}},
        "error_y_color": PALETTE["orange"],
        "error_y_thickness": 1.5,
        "error_y_width": 5,
        "hovertemplate": "%{x:.3g}: %{y:.3~g}<extra>simulated</extra>",
    }
