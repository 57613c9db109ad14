"""The figures of the chapters. One idea each; alt text and units always; legible on light and dark."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import plotly.graph_objects as go

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

    Orange rows run the model; the total of each row stands at its right end.
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
            marker={"color": colour, "line": {"color": colour, "width": 1}},
            hovertemplate=f"{stage.value}<br>from %{{base:.2f}} ms, %{{x:.3f}} ms<extra></extra>",
            showlegend=False,
        )
        fig.add_annotation(
            x=1.0, xref="paper", xanchor="right", y=stage.value,
            text=f"{1e3 * seconds:.2f} ms", showarrow=False,
        )  # fmt: skip
    fig.update_yaxes(autorange="reversed", ticks="", automargin=True)
    fig.update_xaxes(title="milliseconds since the server saw the request", range=[0, 1e3 * total * 1.22])
    fig.update_layout(barmode="overlay", bargap=0.35)
    return fig
