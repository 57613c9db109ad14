"""Several engines under one load: output rate, TTFT and goodput against the rate, a line an engine."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import plotly.graph_objects as go
from plotly.subplots import make_subplots

from servelib.harness.stats import Estimate
from servelib.harness.sweep import Point
from servelib.notebook.figures import PALETTE, PANELS, base_layout

_LOOKS = (
    ("orange", "square", "dash"),
    ("blue", "circle", "solid"),
    ("green", "diamond", "dot"),
    ("purple", "triangle-up", "dashdot"),
)

LOAD = tuple((metric, title) for metric, title, *_ in PANELS)
WAITING = (
    ("ttft_p99", "TTFT p99<br>seconds"),
    ("gap_p99", "gap p99<br>seconds"),
    ("goodput_fraction", "goodput<br>fraction"),
)


def engines_under_load(
    curves: Mapping[str, Sequence[Point]],
    measured: Mapping[str, Sequence[Point]] | None = None,
    *,
    alt: str,
    start: float | None = None,
    panels: Sequence[tuple[str, str]] = LOAD,
) -> go.Figure:
    """``panels`` (metric and title) against the arrival rate, for up to four engines.

    By default output rate, TTFT and goodput. Latencies have logarithmic axes.

    ``curves`` (virtual time, the same rates for all) are lines, ``measured`` open markers with their
    intervals. A frame a rate moves a marker along every line and writes their values. ``start`` is the
    rate shown first. Raises ``ValueError`` where the rates differ or the engines are too many.
    """
    names, measured = list(curves), measured or {}
    rates = [point.rate for point in next(iter(curves.values()))]
    if any([point.rate for point in points] != rates for points in curves.values()):
        raise ValueError("curves: the rates differ from engine to engine, must be the same for all")
    if len(names) > len(_LOOKS):
        raise ValueError(f"curves: got {len(names)} engines, must be at most {len(_LOOKS)}")
    fig = make_subplots(rows=len(panels), cols=1, shared_xaxes=True, vertical_spacing=0.06)
    first = min(range(len(rates)), key=lambda i: abs(rates[i] - (start or rates[0])))
    marks: list[go.Scatter] = []
    for row, (metric, title) in enumerate(panels, start=1):
        for name, (colour, symbol, dash) in zip(names, _LOOKS, strict=False):
            fig.add_scatter(
                x=rates, y=[_value(point, metric) for point in curves[name]], mode="lines", name=name,
                line={"color": PALETTE[colour], "width": 2.5, "dash": dash}, showlegend=row == 1,
                legendgroup=name, hovertemplate="%{x:.3g} req/s: %{y:.3~g}<extra>" + name + "</extra>",
                row=row, col=1,
            )  # fmt: skip
            fig.add_trace(_measured(measured.get(name, ()), metric, name, colour, symbol), row=row, col=1)
            here = go.Scatter(**_mark(rates[first], _value(curves[name][first], metric)))
            here.update(mode="markers", showlegend=False, hoverinfo="skip")
            marks.append(here.update(marker={"color": PALETTE[colour], "size": 12, "symbol": symbol}))
        fig.update_yaxes(title=title, row=row, col=1, **axis(metric))
    moved = list(range(len(fig.data), len(fig.data) + len(marks)))
    for i, mark in enumerate(marks):
        fig.add_trace(mark, row=1 + i // len(names), col=1)
    ticks = [t for t in (0.25, 0.5, 1, 2, 4, 8, 16, 32, 64, 128, 256) if rates[0] <= t <= rates[-1]]
    fig.update_xaxes(type="log", tickvals=ticks, ticktext=[_tick(t) for t in ticks])
    fig.update_xaxes(title="arrival rate, requests per second", row=len(panels), col=1)
    fig.update_layout(base_layout(alt=alt, height=640))
    fig.update_layout(legend={"orientation": "h", "x": 0, "y": 1.02, "yanchor": "bottom"})
    fig.layout.meta = {"alt": alt, "control": {"label": "arrival rate", "initial": first}}
    fig.frames = [
        go.Frame(
            name=frame_name({name: curves[name][i] for name in names}),
            traces=moved,
            data=[
                go.Scatter(**_mark(rates[i], _value(curves[name][i], metric)))
                for metric, _ in panels
                for name in names
            ],
        )
        for i in range(len(rates))
    ]
    return fig


def frame_name(points: Mapping[str, Point]) -> str:
    """One rate in words: what each engine gives, and to how many in time."""
    said = []
    for name, point in points.items():
        rate, share = (_value(point, metric) for metric in ("output_tokens_per_second", "goodput_fraction"))
        shown = "undefined" if rate is None else f"{rate:.0f} tokens/s"
        said.append(f"{name} {shown}" + ("" if share is None else f", goodput {share:.0%}"))
    return f"{next(iter(points.values())).rate:.3g} req/s: " + "; ".join(said)


def axis(metric: str) -> dict[str, Any]:
    """How the axis of a metric runs: latencies by powers of ten, fractions from 0 to 1."""
    if metric.startswith(("ttft", "gap")):
        return {"type": "log", "dtick": 1}
    if metric.endswith("fraction"):
        return {"range": [-0.04, 1.08]}
    return {"rangemode": "tozero"}


def _value(point: Point, metric: str) -> float | None:
    estimate: Estimate = getattr(point.summary, metric)
    return estimate.value


def _mark(x: float, y: float | None) -> dict[str, Any]:
    return {"x": [x], "y": [y]}


def _measured(points: Sequence[Point], metric: str, name: str, colour: str, symbol: str) -> go.Scatter:
    estimates: list[Estimate] = [getattr(point.summary, metric) for point in points]
    low, high = ([_arm(e, side) for e in estimates] for side in (0, 1))
    return go.Scatter(
        x=[point.rate for point in points], y=[e.value for e in estimates], mode="markers",
        name=f"{name}, measured", showlegend=False, legendgroup=name,
        marker={"color": PALETTE[colour], "size": 11, "symbol": f"{symbol}-open", "line": {"width": 2.5}},
        error_y={
            "array": high, "arrayminus": low, "color": PALETTE[colour], "thickness": 1.5, "width": 6,
        },
        hovertemplate="measured at %{x:g} req/s: %{y:.3~g}<extra>" + name + "</extra>",
    )  # fmt: skip


def _arm(estimate: Estimate, side: int) -> float:
    """How far the interval reaches down (0) or up (1) from the value; 0 without an interval."""
    if estimate.value is None or estimate.interval is None:
        return 0.0
    return abs(estimate.interval[side] - estimate.value)


def _tick(rate: float) -> str:
    return {0.25: "¼", 0.5: "½"}.get(rate, f"{rate:g}")
