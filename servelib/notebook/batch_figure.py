"""What a batch buys and where it ends: step time, tokens a second and the price of a token."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import plotly.graph_objects as go
from plotly.subplots import make_subplots

from servelib.errors import check_int
from servelib.notebook.figures import PALETTE, base_layout
from servelib.sim.roofline import RooflineCost, decode_batch_at_balance

CONTEXTS = (256, 512, 1024, 2048, 4096, 8192, 16_384, 32_768)
"""Tokens of each sequence, a frame each."""
LARGEST = 4096
"""The largest batch that is drawn."""
_PANELS = (
    ("step time<br>ms", "blue", "step time %{y:.3~g} ms"),
    ("output rate<br>tokens/s", "green", "%{y:.3~s} tokens/s"),
    ("device time<br>ms a token", "orange", "%{y:.3~g} ms of device time a token"),
)


@dataclass(frozen=True, slots=True)
class Step:
    """One decode step of ``batch`` sequences on ``devices`` devices, ``seconds`` long."""

    batch: int
    seconds: float
    devices: int

    @property
    def shown(self) -> tuple[float, float, float]:
        """Step time in ms, tokens a second, and device time in ms that a token costs."""
        rate = self.batch / self.seconds
        return 1e3 * self.seconds, rate, 1e3 * self.devices / rate


def decode_steps(cost: RooflineCost, context: int) -> list[Step]:
    """Decode steps of more and more sequences of ``context`` tokens, up to the last batch that fits.

    The step's own token counts as one of the ``context``. Empty where not one sequence fits.
    Raises ``InvalidRequestError`` on a context beyond the model's.
    """
    check_int("context", context, 1, cost.config.context, why=f"the context of {cost.config.label}")
    most = min(cost.cache_tokens // context, LARGEST)
    batches = sorted({round(2 ** (i / 4)) for i in range(4 * most.bit_length())} | {most})
    return [
        Step(batch, cost.seconds_of([(1, context - 1)] * batch), cost.devices)
        for batch in batches
        if 1 <= batch <= most
    ]


def batch_figure(
    cost: RooflineCost, *, alt: str, contexts: Sequence[int] = CONTEXTS, start: int = 2048
) -> go.Figure:
    """Step time, tokens a second and device time a token against the decode batch: a frame a context.

    Every user waits one step for a token, so that step time is the gap. The dotted line stands where
    the feed-forward turns from memory-bound to compute-bound, the same for every context. A cross ends
    each curve at the last batch whose keys and values fit; a curve without one goes on beyond
    ``LARGEST``. ``start`` is the context shown first. Raises ``ValueError`` where it is not in
    ``contexts``, and ``InvalidRequestError`` on a context beyond the model's.
    """
    curves = {context: decode_steps(cost, context) for context in contexts}
    first = list(contexts).index(start)
    balance = decode_batch_at_balance(cost)
    fig = make_subplots(rows=3, cols=1, shared_xaxes=True, vertical_spacing=0.06)
    fig.update_layout(base_layout(alt=alt, height=660))
    lines, ends = _traces(cost, start, curves[start])
    for row, (title, colour, hover) in enumerate(_PANELS, start=1):
        line, end = lines[row - 1], ends[row - 1]
        line.update(
            mode="lines", line={"color": PALETTE[colour], "width": 2.5}, name=title.split("<br>")[0],
            hovertemplate=f"batch %{{x}}: {hover}<extra></extra>", showlegend=False,
        )  # fmt: skip
        end.update(
            mode="markers", name="the last batch that fits", hoverinfo="skip", showlegend=row == 1,
            marker={"color": PALETTE["purple"], "symbol": "x", "size": 11},
        )  # fmt: skip
        fig.add_trace(line, row=row, col=1)
        fig.add_trace(end, row=row, col=1)
        values = [step.shown[row - 1] for steps in curves.values() for step in steps] or [1.0]
        low, high = math.log10(min(values)), math.log10(max(values))
        fig.update_yaxes(
            title=title, type="log", range=[low - 0.15, high + 0.15], tickvals=_ticks(low, high),
            tickformat=",~g", row=row, col=1,
        )  # fmt: skip
    moved = list(range(len(fig.data)))
    widest = max([step.batch for steps in curves.values() for step in steps] + [balance or 1])
    fig.update_xaxes(type="log", range=[-0.05, math.log10(widest) + 0.1], tickvals=[4**i for i in range(7)])
    fig.update_xaxes(title="decode batch (sequences in a step)", row=3, col=1)
    if balance is not None:
        for row in (1, 2, 3):
            low, high = fig.get_subplot(row, 1).yaxis.range
            fig.add_scatter(
                x=[balance, balance], y=[10**low, 10**high], mode="lines", hoverinfo="skip",
                line={"color": PALETTE["grey"], "width": 1.5, "dash": "dot"}, showlegend=row == 1,
                name=f"the feed-forward turns compute-bound at {balance}", row=row, col=1,
            )  # fmt: skip
    fig.update_layout(legend={"orientation": "h", "x": 0, "y": 1.02, "yanchor": "bottom"})
    fig.layout.meta = {"alt": alt, "control": {"label": "context of each sequence", "initial": first}}
    fig.frames = [
        go.Frame(name=frame_name(cost, context, steps), traces=moved, data=_woven(cost, context, steps))
        for context, steps in curves.items()
    ]
    return fig


def frame_name(cost: RooflineCost, context: int, steps: Sequence[Step]) -> str:
    """A frame in words: how many sequences fit, and what the last batch drawn gives."""
    if not steps:
        return f"{context:,} tokens: not one sequence fits beside the weights"
    ms, rate, _ = steps[-1].shown
    fit = cost.cache_tokens // context
    at = "then" if steps[-1].batch == fit else f"at {steps[-1].batch:,}"
    many = "sequence fits" if fit == 1 else "sequences fit"
    return f"{context:,} tokens: {fit:,} {many}; {at} {ms:.3g} ms a step, {rate:,.0f} tokens/s"


def _ticks(low: float, high: float) -> list[float]:
    """Round values from 10 ** ``low`` to 10 ** ``high``, with a little to spare: few enough for a phone."""
    digits = (1, 2, 5) if high - low < 1.6 else (1,)
    every = (digit * 10.0**i for i in range(math.floor(low), math.ceil(high) + 1) for digit in digits)
    return [value for value in every if low - 0.15 <= math.log10(value) <= high + 0.15]


def _traces(
    cost: RooflineCost, context: int, steps: Sequence[Step]
) -> tuple[list[go.Scatter], list[go.Scatter]]:
    full = bool(steps) and steps[-1].batch == cost.cache_tokens // context
    last = steps[-1:] if full else []
    return (
        [go.Scatter(x=[s.batch for s in steps], y=[s.shown[i] for s in steps]) for i in range(3)],
        [go.Scatter(x=[s.batch for s in last], y=[s.shown[i] for s in last]) for i in range(3)],
    )


def _woven(cost: RooflineCost, context: int, steps: Sequence[Step]) -> list[go.Scatter]:
    """The traces in the figure's order: each panel's line, then its end."""
    lines, ends = _traces(cost, context, steps)
    return [trace for pair in zip(lines, ends, strict=True) for trace in pair]
