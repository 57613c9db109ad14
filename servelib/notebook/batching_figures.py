"""Chapter 6's figures: what a batch costs a step, what a static batch wastes, and how many at once."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence

import plotly.graph_objects as go
from plotly.subplots import make_subplots

from servelib.harness.sweep import Point
from servelib.notebook.engines_figure import WAITING, axis
from servelib.notebook.figures import PALETTE, base_layout

_LOOKS = (
    ("grey", "circle", "solid"),
    ("blue", "square", "dash"),
    ("green", "diamond", "dot"),
    ("orange", "triangle-up", "dashdot"),
    ("purple", "cross", "longdash"),
)


def steps_by_batch(seen: Mapping[int, Sequence[float]], *, alt: str) -> go.Figure:
    """Step time and tokens a second against how many sequences decode in the step: medians, middle half.

    ``seen`` maps the batch size to measured seconds. The dashed line is what as many steps of one take.
    """
    sizes = list(seen)
    middle = [1e3 * statistics.median(seen[size]) for size in sizes]
    quarters = [statistics.quantiles(seen[size], n=4) for size in sizes]
    fig = make_subplots(rows=2, cols=1, shared_xaxes=True, vertical_spacing=0.07)
    arms = {
        "array": [1e3 * q[2] - m for q, m in zip(quarters, middle, strict=True)],
        "arrayminus": [m - 1e3 * q[0] for q, m in zip(quarters, middle, strict=True)],
        "color": PALETTE["blue"], "thickness": 1.5, "width": 5,
    }  # fmt: skip
    fig.add_scatter(
        x=sizes, y=middle, error_y=arms, mode="lines+markers", name="one step for all", row=1, col=1,
        line={"color": PALETTE["blue"], "width": 2.5}, marker={"size": 8},
        hovertemplate="%{x} at once: %{y:.3~g} ms<extra></extra>",
    )  # fmt: skip
    fig.add_scatter(
        x=sizes, y=[size * middle[0] for size in sizes], mode="lines", name="a step for each", row=1, col=1,
        line={"color": PALETTE["grey"], "width": 1.5, "dash": "dash"}, hoverinfo="skip",
    )  # fmt: skip
    fig.add_scatter(
        x=sizes, y=[1e3 * size / m for size, m in zip(sizes, middle, strict=True)], mode="lines+markers",
        line={"color": PALETTE["green"], "width": 2.5}, marker={"size": 8, "symbol": "diamond"},
        showlegend=False, hovertemplate="%{x} at once: %{y:.3~s} tokens/s<extra></extra>", row=2, col=1,
    )  # fmt: skip
    fig.update_xaxes(type="log", tickvals=sizes, ticktext=[str(size) for size in sizes])
    fig.update_xaxes(title="sequences that decode in the step", row=2, col=1)
    fig.update_yaxes(
        title="step time<br>ms", type="log", tickvals=[1, 2, 5, 10, 20, 50, 100, 200, 500], row=1
    )
    fig.update_yaxes(title="output rate<br>tokens/s", rangemode="tozero", row=2)
    fig.update_layout(base_layout(alt=alt, height=480))
    fig.update_layout(legend={"orientation": "h", "x": 0, "y": 1.02, "yanchor": "bottom"})
    return fig


def waste_by_batch(
    predicted: Mapping[str, Mapping[int, float]], counted: Mapping[str, Mapping[int, float]], *, alt: str
) -> go.Figure:
    """The wasted share of decode places against the batch size: lines predicted, open markers counted.

    Both map the name of a law of lengths (five at most) to shares by batch size.
    """
    fig = go.Figure(layout=base_layout(alt=alt, height=440))
    for (name, shares), (colour, symbol, dash) in zip(predicted.items(), _LOOKS, strict=False):
        fig.add_scatter(
            x=list(shares), y=[100 * share for share in shares.values()], mode="lines", name=name,
            line={"color": PALETTE[colour], "width": 2.5, "dash": dash}, legendgroup=name,
            hovertemplate="batches of %{x}: %{y:.1f} %<extra>" + name + ", predicted</extra>",
        )  # fmt: skip
        fig.add_scatter(
            x=list(counted[name]), y=[100 * share for share in counted[name].values()], mode="markers",
            marker={"color": PALETTE[colour], "symbol": f"{symbol}-open", "size": 10, "line": {"width": 2}},
            name=f"{name}, counted", showlegend=False, legendgroup=name,
            hovertemplate="batches of %{x}: %{y:.1f} %<extra>" + name + ", counted</extra>",
        )  # fmt: skip
    sizes = list(next(iter(predicted.values())))
    fig.update_xaxes(title="batch size", type="log", tickvals=sizes, ticktext=[str(size) for size in sizes])
    fig.update_yaxes(title="decode places wasted, %", range=[-3, 100])
    fig.update_layout(legend={"orientation": "h", "x": 0, "y": 1.02, "yanchor": "bottom"})
    return fig


def by_how_many(
    curves: Mapping[int, Mapping[str, Sequence[Point]]], *, alt: str, start: int, target: float = 0.9
) -> go.Figure:
    """TTFT p99, gap p99 and goodput against the arrival rate: a frame for how many may run at once.

    ``curves`` maps that number to the points of each engine (three at most), at the same rates. The
    ranges stay as they are, so that the lines are seen to move. ``start`` is the number shown first.
    """
    sizes = list(curves)
    fig = make_subplots(rows=3, cols=1, shared_xaxes=True, vertical_spacing=0.06)
    fig.update_layout(base_layout(alt=alt, height=640))
    looks = (("blue", "solid"), ("orange", "dash"), ("green", "dot"))
    for row, (metric, title) in enumerate(WAITING, start=1):
        for (name, points), (colour, dash) in zip(curves[start].items(), looks, strict=False):
            fig.add_scatter(
                x=[p.rate for p in points], y=_values(points, metric), mode="lines", name=name,
                line={"color": PALETTE[colour], "width": 2.5, "dash": dash}, legendgroup=name,
                showlegend=row == 1, hovertemplate="%{x:.3g} req/s: %{y:.3~g}<extra>" + name + "</extra>",
                row=row, col=1,
            )  # fmt: skip
        fig.update_yaxes(title=title, row=row, col=1, **axis(metric))
    fig.update_yaxes(range=[-2.1, 1.3], row=1, col=1)
    fig.update_yaxes(range=[-3.1, -0.2], row=2, col=1)
    rates = [point.rate for point in next(iter(curves[start].values()))]
    ticks = [2**i for i in range(9) if rates[0] <= 2**i <= rates[-1]]
    fig.update_xaxes(type="log", tickvals=ticks, ticktext=[str(tick) for tick in ticks])
    fig.update_xaxes(title="arrival rate, requests per second", row=3, col=1)
    fig.update_layout(legend={"orientation": "h", "x": 0, "y": 1.02, "yanchor": "bottom"})
    fig.layout.meta = {
        "alt": alt,
        "control": {"label": "at most at once (batch size, max_num_seqs)", "initial": sizes.index(start)},
    }
    fig.frames = [
        go.Frame(
            name=_in_words(size, engines, target),
            traces=list(range(len(fig.data))),
            data=[
                go.Scatter(y=_values(points, metric)) for metric, _ in WAITING for points in engines.values()
            ],
        )
        for size, engines in curves.items()
    ]
    return fig


def _in_words(size: int, engines: Mapping[str, Sequence[Point]], target: float) -> str:
    said = []
    for name, points in engines.items():
        held = [p.rate for p in points if (p.summary.goodput_fraction.value or 0.0) >= target]
        said.append(f"{name} up to {max(held):.3g} req/s" if held else f"{name} at none of the rates")
    return f"{size} at once: goodput of {target:.0%} or more: " + ", ".join(said)


def _values(points: Sequence[Point], metric: str) -> list[float | None]:
    return [getattr(point.summary, metric).value for point in points]
