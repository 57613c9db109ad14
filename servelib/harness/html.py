"""A report as one HTML file that opens anywhere, offline: the script of the figures is inside (5 MB)."""

from __future__ import annotations

import html
from collections.abc import Iterable, Sequence
from typing import Any

import plotly.graph_objects as go
from plotly.offline import get_plotlyjs

from servelib.harness.metrics import samples
from servelib.harness.records import RequestRecord, RunRecord
from servelib.harness.report import notes
from servelib.harness.sweep import Point
from servelib.notebook.figures import PALETTE, base_layout
from servelib.notebook.tables import results

DASHES = ("solid", "dash", "dot", "dashdot", "longdash", "longdashdot")
GRID = "rgba(128,136,145,0.3)"
MOST_ROWS = 400  # requests drawn one by one

PAGE = """<!doctype html>
<html lang="en"><head><meta charset="utf-8"><meta name="viewport" content="width=device-width">
<title>{title}</title>
<style>
:root {{ color-scheme: light dark; --back: #fff; --ink: #1c2024; }}
@media (prefers-color-scheme: dark) {{ :root {{ --back: #14171a; --ink: #e3e6e8; }} }}
body {{ background: var(--back); color: var(--ink); max-width: 62rem; margin: 2rem auto; padding: 0 1rem;
  font: 16px/1.5 system-ui, -apple-system, "Segoe UI", sans-serif; }}
.js-plotly-plot text {{ fill: var(--ink) !important; }}
.js-plotly-plot .hovertext text {{ fill: #fff !important; }}
table {{ border-collapse: collapse; font-variant-numeric: tabular-nums; }}
caption {{ text-align: left; }}
th, td {{ padding: .2rem .6rem; text-align: right; border-bottom: 1px solid {grid}; }}
.sl-table {{ overflow-x: auto; }}
.sl-conditions, figcaption {{ font-size: .85rem; }}
figure {{ margin: 1rem 0 2rem; }}
</style>
<script>{script}</script></head><body>
<h1>{title}</h1>
{table}
<ul>{notes}</ul>
{figures}
</body></html>
"""


def html_report(points: Sequence[Point], *, title: str = "servelib bench") -> str:
    """The results with their figures as one page, whole in itself.

    Distributions have a line an arrival rate, all its runs together; what happens over time is shown of
    the first run at each rate.
    """
    figures = [
        (distribution(points, "ttft"), "Time to first token of the requests that succeeded."),
        (distribution(points, "gap"), "Every gap between two tokens of one request, bursts as gaps of 0."),
    ]
    for point in points:
        run, where = point.runs[0], f"Run 1 {point.where}: "
        figures += [
            (in_flight(run), where + "requests that wait for their first token, and that have had it."),
            (output_rate(run), where + "output tokens a second, over time."),
            (rows(run), where + "each request from its scheduled time to its end."),
        ]
    return PAGE.format(
        title=html.escape(title),
        grid=GRID,
        script=get_plotlyjs(),
        table=results(points, caption="Results at each arrival rate")._repr_html_(),
        notes="".join(f"<li>{html.escape(note)}</li>" for note in notes(points)),
        figures="\n".join(_figure(f"figure-{i}", *figure) for i, figure in enumerate(figures)),
    )


def distribution(points: Sequence[Point], kind: str) -> go.Figure:
    """The share of values at or below each value, on a logarithmic axis where that helps."""
    title = {"ttft": "TTFT, seconds", "gap": "gap, seconds"}[kind]
    fig = go.Figure(
        layout=_layout(f"Distribution of {title} at each arrival rate", title, "share at or below")
    )
    for i, point in enumerate(points):
        values = sorted(value for run in point.runs for value in getattr(samples(run), kind))
        x, y = _steps(values)
        fig.add_scatter(
            x=x, y=y, mode="lines", name=point.label, line_shape="hv",
            line={"color": list(PALETTE.values())[i % len(PALETTE)], "dash": DASHES[i % len(DASHES)]},
            hovertemplate="%{y:.1%} within %{x:.4g} s<extra></extra>",
        )  # fmt: skip
    fig.update_yaxes(range=[0, 1.02])
    return fig


def in_flight(run: RunRecord) -> go.Figure:
    """How many requests wait for their first token, and how many are being answered."""
    fig = go.Figure(layout=_layout("Waiting and running requests over time", SECONDS, "requests"))
    waiting = [(r.scheduled, r.events[0][0] if r.events else r.end or r.scheduled) for r in run.requests]
    running = [(r.events[0][0], r.end or r.events[-1][0]) for r in run.requests if r.events]
    for name, spans, dash in (("waiting", waiting, "dash"), ("running", running, "solid")):
        x, y = _count(spans)
        colour = PALETTE["orange" if name == "waiting" else "blue"]
        fig.add_scatter(
            x=x, y=y, mode="lines", line_shape="hv", name=name, line={"color": colour, "dash": dash}
        )
    return fig


def output_rate(run: RunRecord, bins: int = 60) -> go.Figure:
    """Tokens credited to the time of their event, in equal bins."""
    fig = go.Figure(layout=_layout("Output tokens a second over time", SECONDS, "tokens/s"))
    width, rates = rate_over_time(run, bins)
    fig.add_scatter(
        x=[i * width for i in range(bins)], y=rates,
        mode="lines", line_shape="hv", line={"color": PALETTE["green"]}, showlegend=False,
    )  # fmt: skip
    return fig


def rate_over_time(run: RunRecord, bins: int) -> tuple[float, list[float]]:
    """The width of ``bins`` equal parts of the run in seconds, and the output tokens/s in each."""
    width = run.duration / bins if run.duration > 0 else 1.0
    counts = [0] * bins
    for time, tokens in (event for r in run.requests for event in r.events):
        counts[min(bins - 1, int(time / width))] += tokens
    return width, [count / width for count in counts]


def rows(run: RunRecord) -> go.Figure:
    """A bar a request: the wait for its first token, then its answer; a cross where it failed."""
    shown = run.requests[:MOST_ROWS]
    layout = _layout("Each request over time", SECONDS, "request", height=min(1600, 220 + 12 * len(shown)))
    fig = go.Figure(layout=layout)
    parts = (
        ("waiting", "orange", "/", [(r.scheduled, r.events[0][0] if r.events else _end(r)) for r in shown]),
        ("answering", "blue", "", [(r.events[0][0], _end(r)) if r.events else (0, 0) for r in shown]),
    )
    for name, colour, pattern, spans in parts:
        fig.add_bar(
            base=[start for start, _ in spans], x=[end - start for start, end in spans],
            y=list(range(len(shown))), orientation="h", name=name,
            marker={"color": PALETTE[colour], "pattern": {"shape": pattern}},
            hovertemplate=f"{name} %{{x:.4g}} s from %{{base:.4g}} s<extra>%{{y}}</extra>",
        )  # fmt: skip
    failed = [(i, r) for i, r in enumerate(shown) if not r.ok]
    fig.add_scatter(
        x=[_end(r) for _, r in failed], y=[i for i, _ in failed], mode="markers", name="failed",
        marker={"symbol": "x", "color": PALETTE["purple"], "size": 9},
        text=[f"{r.outcome.value if r.outcome else ''}: {r.error or ''}" for _, r in failed],
        hovertemplate="%{text}<extra></extra>",
    )  # fmt: skip
    fig.update_layout(barmode="overlay", bargap=0.2)
    fig.update_yaxes(autorange="reversed", tickformat="d")
    return fig


SECONDS = "seconds since the run began"


def _layout(alt: str, x: str, y: str, height: int = 320) -> dict[str, Any]:
    axis = {"gridcolor": GRID, "zerolinecolor": GRID, "automargin": True}
    return base_layout(
        alt=alt,
        height=height,
        xaxis={"title": {"text": x}, **axis},
        yaxis={"title": {"text": y}, "rangemode": "tozero", **axis},
        legend={"orientation": "h", "y": 1.12},
    )


def _figure(name: str, fig: go.Figure, caption: str) -> str:
    # Inside a script element, "</" would end it: values from a server can hold anything.
    content = fig.to_json().replace("<", "\\u003c")
    alt = html.escape(fig.layout.meta["alt"], quote=True)
    return (
        f'<figure><div id="{name}" role="img" aria-label="{alt}"></div>'
        f"<figcaption>{html.escape(caption)}</figcaption><script>{{const f = {content};"
        f'Plotly.newPlot("{name}", f.data, f.layout, {{responsive: true, displaylogo: false}});}}'
        "</script></figure>"
    )


def _end(record: RequestRecord) -> float:
    return record.scheduled if record.end is None else record.end


def _steps(values: Sequence[float], most: int = 2000) -> tuple[list[float], list[float]]:
    """The corners of a distribution's curve, thinned out beyond ``most``."""
    n = len(values)
    picked = range(n) if n <= most else sorted({round(i * (n - 1) / (most - 1)) for i in range(most)})
    return [values[i] for i in picked], [(i + 1) / n for i in picked]


def _count(spans: Iterable[tuple[float, float]]) -> tuple[list[float], list[int]]:
    moves = sorted(move for start, end in spans for move in ((start, 1), (end, -1)))
    x, y, now = [0.0], [0], 0
    for time, move in moves:
        now += move
        x.append(time)
        y.append(now)
    return x, y
