"""Chapter 5's figures: the time of each token, and what the cache takes of a machine's memory."""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import plotly.graph_objects as go

from servelib.errors import check_int
from servelib.model.config import ModelConfig
from servelib.notebook.figures import PALETTE, base_layout
from servelib.sim.machines import Machine
from servelib.sim.shape import kv_bytes_per_token, weight_bytes

REQUESTS = (1, 2, 4, 8, 16, 32, 64, 128, 256)
"""Requests held at once, a frame each."""
_LOOKS = (("orange", "square", "dash"), ("blue", "circle", "solid"))
_KINDS = (
    ("a key-value head for each query head", "orange", "dash"),
    ("key-value heads as built", "blue", "solid"),
    ("one key-value head for all", "green", "dot"),
)


@dataclass(frozen=True, slots=True)
class Line:
    """``start + slope * n``: in seconds, for token ``n``."""

    start: float
    slope: float

    def at(self, n: float) -> float:
        """Seconds of token ``n``."""
        return self.start + self.slope * n


def token_times(
    runs: Mapping[str, Sequence[Sequence[float]]], lines: Mapping[str, Line], *, alt: str
) -> go.Figure:
    """Milliseconds of token n against n: the median over runs as points, and a fitted line.

    ``runs`` maps a name (two at most) to runs of seconds a token, the first token first.
    """
    fig = go.Figure(layout=base_layout(alt=alt, height=420))
    highest = 0.0
    for (name, repeats), (colour, symbol, dash) in zip(runs.items(), _LOOKS, strict=False):
        middle = [1e3 * statistics.median(seconds) for seconds in zip(*repeats, strict=True)]
        tokens = list(range(1, len(middle) + 1))
        fig.add_scatter(
            x=tokens, y=middle, mode="markers", name=name,
            marker={"color": PALETTE[colour], "symbol": f"{symbol}-open", "size": 6},
            hovertemplate="token %{x}: %{y:.2f} ms<extra>" + name + "</extra>",
        )  # fmt: skip
        ends = [2, len(middle)]
        drawn = [1e3 * lines[name].at(n) for n in ends]
        fig.add_scatter(
            x=ends, y=drawn, mode="lines", name=f"{name}, fitted line", hoverinfo="skip",
            line={"color": PALETTE[colour], "width": 2.5, "dash": dash},
        )  # fmt: skip
        # One slow moment of the machine must not press all the rest against the axis.
        highest = max(highest, *drawn, sorted(middle)[int(0.99 * (len(middle) - 1))])
    fig.update_xaxes(title="token of the answer", rangemode="tozero")
    fig.update_yaxes(title="time of the token (ms)", range=[0, 1.15 * highest])
    fig.update_layout(legend={"orientation": "h", "x": 0, "y": 1.02, "yanchor": "bottom"})
    return fig


def grouped(config: ModelConfig) -> list[ModelConfig]:
    """The model with a key-value head for each query head, as built, and with a single one.

    Only the cache is meant: the weights of the three differ by a few per cent, which is left out.
    """
    return [replace(config, kv_heads=heads) for heads in (config.heads, config.kv_heads, 1)]


def tokens_each(config: ModelConfig, room: float, requests: int) -> int:
    """How many tokens each of ``requests`` may hold, so that all their caches fit in ``room`` bytes."""
    check_int("requests", requests, 1)
    return max(0, math.floor(room / (requests * kv_bytes_per_token(config))))


def memory_figure(
    config: ModelConfig, machine: Machine, *, alt: str, devices: int = 1, start: int = 32
) -> go.Figure:
    """Weights and caches in GB against the tokens of each request: a frame a number of requests.

    Three lines, by how many key-value heads the model has; a cross where the machine is full. ``start``
    is the number shown first. Raises ``ValueError`` where it is not in ``REQUESTS``.
    """
    memory, weights = devices * machine.memory.value, float(weight_bytes(config))
    first = REQUESTS.index(start)
    fig = go.Figure(layout=base_layout(alt=alt, height=460))
    name = f"{devices} x {machine.name}" if devices > 1 else machine.name
    ends = [256, config.context]
    for height, words, dash, end in (
        (memory, f"memory of {name}", "solid", 0),
        (weights, "weights", "longdash", 1),
    ):
        fig.add_scatter(
            x=ends, y=[height / 1e9] * 2, mode="lines", name=words, hoverinfo="skip", showlegend=False,
            line={"color": PALETTE["grey"], "width": 1.5, "dash": dash},
        )  # fmt: skip
        fig.add_annotation(  # where no curve passes: above the memory's left end, below the weights' right
            x=math.log10(ends[end]), y=height / 1e9, text=f"{words}: {height / 1e9:,.3g} GB", showarrow=False,
            xanchor=("left", "right")[end], yanchor=("bottom", "top")[end],
        )  # fmt: skip
    traces = _memory_traces(config, memory - weights, weights, start)
    for trace, (words, colour, dash) in zip(traces[:3], _KINDS, strict=True):
        trace.update(
            mode="lines", name=words, line={"color": PALETTE[colour], "width": 2.5, "dash": dash},
            hovertemplate="%{x:,} tokens each: %{y:,.3g} GB<extra>" + words + "</extra>",
        )  # fmt: skip
        fig.add_trace(trace)
    traces[3].update(
        mode="markers", name="memory is full", hovertemplate="%{x:,} tokens each<extra>full</extra>",
        marker={"color": PALETTE["purple"], "symbol": "x", "size": 11},
    )  # fmt: skip
    fig.add_trace(traces[3])
    ticks = [4**i for i in range(4, 10) if 4**i <= config.context]
    fig.update_xaxes(
        title="tokens of each request", type="log", tickvals=ticks, ticktext=[f"{n:,}" for n in ticks],
        range=[math.log10(ends[0]), math.log10(ends[1])],
    )  # fmt: skip
    fig.update_yaxes(title="weights and caches (GB)", range=[0, 1.25 * memory / 1e9])
    fig.update_layout(legend={"orientation": "h", "x": 0, "y": 1.02, "yanchor": "bottom"})
    fig.layout.meta = {"alt": alt, "control": {"label": "requests held at once", "initial": first}}
    fig.frames = [
        go.Frame(
            name=frame_name(config, memory - weights, requests),
            traces=[2, 3, 4, 5],
            data=_memory_traces(config, memory - weights, weights, requests),
        )
        for requests in REQUESTS
    ]
    return fig


def frame_name(config: ModelConfig, room: float, requests: int) -> str:
    """A frame in words: how many tokens each request may hold, as built and without shared heads."""
    each, built, _ = (tokens_each(kind, room, requests) for kind in grouped(config))
    many = "1 request" if requests == 1 else f"{requests} requests"
    if built >= config.context:
        full = f"room for all of the context, {config.context:,} tokens each"
    else:
        full = f"memory is full at {built:,} tokens each"
    return f"{many}: {full}; with a key-value head for each query head at {each:,}"


def _memory_traces(config: ModelConfig, room: float, weights: float, requests: int) -> list[go.Scatter]:
    """Three lines and their ends, up to a little above the memory."""
    contexts = [round(256 * 2 ** (i / 8)) for i in range(8 * math.ceil(math.log2(config.context / 256)) + 1)]
    contexts = [n for n in contexts if n < config.context] + [config.context]
    lines, full = [], []
    for kind in grouped(config):
        each = requests * kv_bytes_per_token(kind)
        lines.append(go.Scatter(x=contexts, y=[(weights + each * n) / 1e9 for n in contexts]))
        end = tokens_each(kind, room, requests)
        if 256 <= end <= config.context:
            full.append(end)
    return [*lines, go.Scatter(x=full, y=[(weights + room) / 1e9] * len(full))]
