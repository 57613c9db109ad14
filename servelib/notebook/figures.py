"""The figures of the chapters. One idea each; alt text and units always; legible on light and dark."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import plotly.graph_objects as go
from plotly.subplots import make_subplots

from servelib.harness.sweep import Point
from servelib.spans import Span, Stage

PALETTE = {
    "blue": "#2f7fd1",
    "orange": "#d9730d",
    "green": "#1f9d6b",
    "purple": "#9b6bd3",
    "grey": "#808891",
}
"""Colours with a contrast of 3 or more on white and on the dark theme's background. Never the only
difference between two lines: each also has its own dash or marker."""


def base_layout(*, alt: str, height: int, **more: Any) -> dict[str, Any]:
    """The layout every figure shares. ``alt`` is read aloud in place of the picture."""
    return {
        "height": height,
        "template": "none",
        "margin": {"l": 64, "r": 16, "t": 16, "b": 52},
        "font": {"size": 14, "family": "system-ui, -apple-system, 'Segoe UI', sans-serif"},
        "paper_bgcolor": "rgba(0,0,0,0)",
        "plot_bgcolor": "rgba(0,0,0,0)",
        "hovermode": "closest",
        "meta": {"alt": alt},
        **more,
    }


def timeline(spans: Sequence[Span], *, alt: str) -> go.Figure:
    """One request's stages as bars on a time axis: a row a stage, from the first byte to the last.

    Orange rows run the model; the total of each row stands at its right end. Every second bar of a
    row is paler, so that neighbours are told apart.
    """
    begin = min(span.start for span in spans)
    total = max(span.end for span in spans) - begin
    fig = go.Figure(layout=base_layout(alt=alt, height=400))
    for stage in Stage:
        of_stage = [span for span in spans if span.stage is stage]
        if not of_stage:
            continue
        seconds = sum(span.seconds for span in of_stage)
        colour = PALETTE["orange" if stage.on_accelerator else "blue"]
        # Thinner than a pixel would not be seen: the outline gives each bar at least one.
        fig.add_bar(
            base=[1e3 * (span.start - begin) for span in of_stage],
            x=[1e3 * span.seconds for span in of_stage],
            y=[stage.value] * len(of_stage),
            orientation="h",
            marker={
                "color": colour,
                "opacity": [1.0 if i % 2 == 0 else 0.6 for i in range(len(of_stage))],
                "line": {"color": colour, "width": 1},
            },
            hovertemplate=f"{stage.value}<br>from %{{base:.2f}} ms, %{{x:.3f}} ms<extra></extra>",
            showlegend=False,
        )
        fig.add_annotation(
            x=1.0, xref="paper", xanchor="right", y=stage.value,
            text=f"{1e3 * seconds:.2f} ms", showarrow=False,
        )  # fmt: skip
    fig.update_yaxes(autorange="reversed", ticks="", automargin=True, showgrid=False)
    fig.update_xaxes(title="milliseconds since the server saw the request", range=[0, 1e3 * total * 1.3])
    fig.update_layout(barmode="overlay", bargap=0.35)
    return fig


PANELS = (
    ("output_tokens_per_second", "output rate<br>tokens/s", "blue", "circle"),
    ("ttft_p50", "TTFT p50<br>seconds", "orange", "square"),
    ("goodput_fraction", "goodput<br>fraction", "green", "diamond"),
)


def load_curve(
    curve: Sequence[Point], measured: Sequence[Point] = (), *, alt: str, start: float | None = None
) -> go.Figure:
    """Output rate, TTFT and goodput against the arrival rate: three panels over one axis.

    ``curve`` (virtual time) is the line, ``measured`` the points with their intervals. One frame a
    rate of the curve moves a marker along all three lines and writes their values: the range input
    of the rendered page and the slider of a live notebook both play them. ``start`` is the rate
    shown first.
    """
    fig = make_subplots(rows=3, cols=1, shared_xaxes=True, vertical_spacing=0.06)
    rates = [point.rate for point in curve]
    for row, (name, title, colour, marker) in enumerate(PANELS, start=1):
        values = [getattr(point.summary, name).value for point in curve]
        fig.add_scatter(
            x=rates, y=values, mode="lines", line={"color": PALETTE[colour], "width": 2.5},
            name="virtual time", showlegend=False, row=row, col=1,
            hovertemplate=f"%{{x:.2f}} req/s: %{{y:.3g}}<extra>{title.replace('<br>', ', ')}</extra>",
        )  # fmt: skip
        estimates = [getattr(point.summary, name) for point in measured]
        fig.add_scatter(
            x=[point.rate for point in measured], y=[e.value for e in estimates], mode="markers",
            marker={"color": PALETTE[colour], "size": 10, "symbol": f"{marker}-open", "line": {"width": 2.5}},
            error_y={
                "array": [0.0 if e.value is None or e.high is None else e.high - e.value for e in estimates],
                "arrayminus": [
                    0.0 if e.value is None or e.low is None else e.value - e.low for e in estimates
                ],
                "color": PALETTE[colour], "thickness": 1.5, "width": 6,
            },
            name="measured", showlegend=False, row=row, col=1,
            hovertemplate="measured at %{x:g} req/s: %{y:.3g}<extra></extra>",
        )  # fmt: skip
        fig.update_yaxes(title=title, rangemode="tozero", row=row, col=1)
    first = min(range(len(rates)), key=lambda i: abs(rates[i] - (start or rates[0])))
    for row, (name, *_) in enumerate(PANELS, start=1):
        value = getattr(curve[first].summary, name).value
        fig.add_scatter(
            x=[rates[first]], y=[value], mode="markers", name="chosen rate", showlegend=False,
            marker={"color": PALETTE["purple"], "size": 14, "line": {"width": 0}},
            hoverinfo="skip", row=row, col=1,
        )  # fmt: skip
    fig.update_xaxes(
        type="log", tickvals=[0.25, 0.5, 1, 2, 4, 8, 16], ticktext=["¼", "½", "1", "2", "4", "8", "16"]
    )
    fig.update_xaxes(title="arrival rate, requests per second", row=3, col=1)
    fig.update_yaxes(range=[-0.04, 1.08], row=3, col=1)
    fig.update_layout(base_layout(alt=alt, height=620))
    fig.layout.meta = {"alt": alt, "control": {"label": "arrival rate", "initial": first}}
    moved = [len(fig.data) - 3, len(fig.data) - 2, len(fig.data) - 1]
    fig.frames = [
        go.Frame(
            name=_frame_name(point),
            traces=moved,
            data=[go.Scatter(x=[point.rate], y=[getattr(point.summary, name).value]) for name, *_ in PANELS],
        )
        for point in curve
    ]
    return fig


def _frame_name(point: Point) -> str:
    s = point.summary
    shown = [f"{point.rate:.3g} req/s"]
    if s.output_tokens_per_second.value is not None:
        shown.append(f"output {s.output_tokens_per_second.value:.0f} tokens/s")
    if s.ttft_p50.value is not None:
        shown.append(f"TTFT p50 {s.ttft_p50.value:.2f} s")
    if s.goodput_fraction.value is not None:
        shown.append(f"goodput {s.goodput_fraction.value:.0%}")
    return ", ".join(shown)


def interval_by_n(
    found: dict[str, Sequence[tuple[int, float, tuple[float, float] | None]]],
    truth: dict[str, float],
    *,
    unit: str,
    alt: str,
) -> go.Figure:
    """Percentiles and their intervals against the number of samples, each beside its true value.

    ``found`` maps a name (two at most) to (n, value, interval); without an interval the marker is an
    open cross: too few samples to bound it.
    """
    fig = go.Figure(layout=base_layout(alt=alt, height=420))
    looks = (("blue", "circle", "dash"), ("orange", "square", "dot"))
    for (name, rows), (colour, symbol, dash) in zip(found.items(), looks, strict=False):
        low = [0.0 if bounds is None else value - bounds[0] for _, value, bounds in rows]
        high = [0.0 if bounds is None else bounds[1] - value for _, value, bounds in rows]
        fig.add_scatter(
            x=[n for n, *_ in rows], y=[value for _, value, _ in rows], mode="markers", name=name,
            marker={
                "color": PALETTE[colour], "size": 9,
                "symbol": ["x-thin-open" if bounds is None else symbol for *_, bounds in rows],
            },
            error_y={
                "array": high, "arrayminus": low, "color": PALETTE[colour], "thickness": 1.5, "width": 5,
            },
            hovertemplate="%{y:.3g} " + unit + " from %{x:,} samples<extra>" + name + "</extra>",
        )  # fmt: skip
        ends = [rows[0][0], rows[-1][0]]
        fig.add_scatter(
            x=ends, y=[truth[name]] * 2, mode="lines", name=f"true {name}", hoverinfo="skip",
            line={"color": PALETTE[colour], "width": 1.5, "dash": dash},
        )  # fmt: skip
    fig.update_xaxes(title="samples", type="log", dtick=1)
    fig.update_yaxes(title=unit, rangemode="tozero")
    fig.update_layout(legend={"orientation": "h", "x": 0, "y": 1.02, "yanchor": "bottom"})
    return fig
