"""The roofline, a step by its parts, and what a batch buys: three figures of the arithmetic."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import plotly.graph_objects as go

from servelib.notebook.figures import PALETTE, base_layout
from servelib.sim.count import StepCount
from servelib.sim.roofline import PartTime

_LOOKS = {"prefill": ("orange", "square", "bottom right"), "decode": ("blue", "circle", "top left")}
_UNITS = ((1e15, "P"), (1e12, "T"), (1e9, "G"), (1e6, "M"), (1e3, "k"))
_CLEAR = "rgba(0,0,0,0)"


@dataclass(frozen=True, slots=True)
class Spot:
    """One step on the roofline: ``intensity`` in operations a byte, ``rate`` in operations a second.

    ``name`` stands beside the marker, so keep it short; ``phase`` is ``prefill`` or ``decode``.
    """

    name: str
    phase: str
    intensity: float
    rate: float
    measured: bool = False

    @classmethod
    def of(cls, name: str, phase: str, step: StepCount, seconds: float, *, measured: bool = False) -> Spot:
        """The spot of a counted step that took, or is predicted to take, ``seconds``."""
        return cls(name, phase, step.intensity, step.operations / seconds, measured)


def roofline(
    peak: float, bandwidth: float, points: Sequence[Spot] = (), *, alt: str, machine: str
) -> go.Figure:
    """Operations a second that can be reached against operations a byte, both in logarithms.

    ``peak`` in operations/s, ``bandwidth`` in bytes/s. Prefill is an orange square and decode a blue
    circle; measured ones are filled, predicted ones open. ``machine`` names the ceilings.
    """
    corner = peak / bandwidth
    labelled = {(spot.phase, spot.name) for spot in points if spot.measured}
    fig = go.Figure(layout=base_layout(alt=alt, height=460))
    left = min([corner / 300, *(spot.intensity / 3 for spot in points)])
    right = max([corner * 30, *(spot.intensity * 4 for spot in points)])
    bottom = min([bandwidth * left, *(spot.rate for spot in points)]) / 2
    powers = [10.0**i for i in range(math.ceil(math.log10(bottom)), math.floor(math.log10(peak * 8)) + 1)]
    fig.add_scatter(
        x=[left, corner, right], y=[bandwidth * left, peak, peak], mode="lines", hoverinfo="skip",
        line={"color": PALETTE["grey"], "width": 2.5}, name="ceilings", showlegend=False,
    )  # fmt: skip
    fig.add_scatter(
        x=[corner, corner], y=[bottom, peak], mode="lines", hoverinfo="skip", showlegend=False,
        line={"color": PALETTE["grey"], "width": 1.5, "dash": "dot"}, name="corner",
    )  # fmt: skip
    for phase, (colour, symbol, side) in _LOOKS.items():
        for measured in (True, False):
            of_kind = [spot for spot in points if (spot.phase, spot.measured) == (phase, measured)]
            if not of_kind:
                continue
            names = [spot.name for spot in of_kind]
            kind = f"{phase}, {'measured' if measured else 'predicted'}"
            fig.add_scatter(
                x=[spot.intensity for spot in of_kind], y=[spot.rate for spot in of_kind], name=kind,
                text=[name if measured or (phase, name) not in labelled else "" for name in names],
                customdata=names, mode="markers+text", cliponaxis=False,
                textposition=side if measured else "top left",
                marker={
                    "color": PALETTE[colour], "size": 10 if measured else 13,
                    "symbol": symbol if measured else f"{symbol}-open",
                    "line": {"width": 2, "color": PALETTE[colour]},
                },
                hovertemplate="%{customdata}: %{x:.3~g}/byte, %{y:.3~s}/s<extra>" + kind + "</extra>",
            )  # fmt: skip
    middle = math.sqrt(left * corner)
    fig.add_annotation(  # nothing lies above the ceilings, so the words stand there
        x=math.log10(middle), y=math.log10(bandwidth * middle), text=f"moves {short(bandwidth)}B/s",
        showarrow=True, ax=-36, ay=-56, arrowcolor=PALETTE["grey"], arrowhead=2,
    )  # fmt: skip
    fig.add_annotation(
        x=math.log10(right), y=math.log10(peak), showarrow=False,
        text=f"{machine}<br>computes {short(peak).strip()} operations/s",
        xanchor="right", yanchor="bottom", yshift=20, align="right",
    )  # fmt: skip
    fig.add_annotation(
        x=math.log10(corner), y=math.log10(bottom), text=f"{corner:.3g} operations a byte",
        showarrow=False, xanchor="right", yanchor="bottom",
    )  # fmt: skip
    fig.update_xaxes(
        title="arithmetic intensity (operations per byte)", type="log", dtick=1,
        range=[math.log10(left), math.log10(right)],
    )  # fmt: skip
    fig.update_yaxes(
        title="operations per second", type="log", range=[math.log10(bottom), math.log10(peak * 8)],
        tickvals=powers, ticktext=[short(power).strip() for power in powers],
    )  # fmt: skip
    fig.update_layout(legend={"orientation": "h", "x": 0, "y": 1.02, "yanchor": "bottom"})
    return fig


def step_breakdown(parts: Sequence[PartTime], *, alt: str) -> go.Figure:
    """A step's parts, from first to last: time for computing beside time for moving.

    The longer of the two is what the part takes: it is solid and has its time beside it. The shorter
    one is only an outline. Raises ``ValueError`` without a part.
    """
    if not parts:
        raise ValueError("parts: got none, must be at least one")
    longest = max(part.seconds for part in parts)
    scale, unit = next(((s, u) for s, u in ((1.0, "s"), (1e3, "ms")) if longest * s >= 1.0), (1e6, "µs"))
    fig = go.Figure(layout=base_layout(alt=alt, height=52 * len(parts) + 100))
    names = [part.part.name for part in parts]
    for bound, word, colour, pattern in (
        ("compute", "computing", "blue", ""),
        ("memory", "moving", "orange", "/"),
    ):
        seconds = [part.computing if bound == "compute" else part.moving for part in parts]
        longer = [part.bound == bound for part in parts]
        fig.add_bar(
            x=[scale * s for s in seconds], y=names, orientation="h", name=word,
            text=[_told(scale * s, unit) if on else "" for s, on in zip(seconds, longer, strict=True)],
            textposition="outside", textfont={"size": 12}, constraintext="none", cliponaxis=False,
            marker={
                "color": [PALETTE[colour] if on else _CLEAR for on in longer],
                "line": {"color": PALETTE[colour], "width": 1.5},
                "pattern": {"shape": [pattern if on else "" for on in longer], "size": 6, "solidity": 0.4},
            },
            hovertemplate=f"%{{y}}: {word} takes %{{x:.3~g}} {unit}<extra></extra>", showlegend=False,
        )  # fmt: skip
        fig.add_bar(  # the legend's key: the bars' first colour may be clear
            x=[None], y=[names[0]], orientation="h", name=word,
            marker={"color": PALETTE[colour], "pattern": {"shape": pattern, "size": 6, "solidity": 0.4}},
        )  # fmt: skip
    fig.update_yaxes(autorange="reversed", ticks="", automargin=True, showgrid=False)
    fig.update_xaxes(title=f"time ({unit}); the longer of each pair counts", rangemode="tozero")
    fig.update_xaxes(range=[0, 1.25 * scale * longest])
    fig.update_layout(
        barmode="group", bargap=0.25, legend={"orientation": "h", "x": 0, "y": 1.02, "yanchor": "bottom"}
    )
    return fig


def _told(value: float, unit: str) -> str:
    return f"{value:.3g} {unit}" if value >= 0.001 else f"< 0.001 {unit}"


def short(value: float) -> str:
    """A large number in three digits, with a blank and its prefix, before a unit: ``3.35 T``, ``12 ``."""
    size, prefix = next(((s, p) for s, p in _UNITS if value >= s), (1.0, ""))
    return f"{value / size:.3g} {prefix}"
