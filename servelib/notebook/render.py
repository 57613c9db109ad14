"""The book's figure renderer: one figure, read both by JupyterLab and by the static page."""

from __future__ import annotations

import copy
import html
from typing import Any

import plotly.io as pio
from plotly.io.base_renderers import MimetypeRenderer
from plotly.io.json import to_json_plotly

DEFAULT_HEIGHT = 420


class FigureError(ValueError):
    """A figure that not every reader could use, refused before it is shown."""


class BookRenderer(MimetypeRenderer):  # type: ignore[misc]  # plotly is untyped
    """Render a figure as a labelled ``<div>`` that holds it as JSON, for ``book/_static/plots.js`` to draw.

    The figure's ``layout.meta`` is a mapping: ``alt`` (required) is what a screen reader says in its
    place, ``control`` ``{"label", "initial"}`` names the range input made from its frames and the
    index of the frame shown first. Raises ``FigureError`` where one of them is missing or wrong.
    """

    def to_mimebundle(self, fig_dict: dict[str, Any]) -> dict[str, str]:
        """Return the ``text/html`` form; the static page has no kernel and loads plotly.js by itself."""
        alt, _, _ = described(fig_dict)
        height = int(fig_dict.get("layout", {}).get("height") or DEFAULT_HEIGHT)
        label = html.escape(alt, quote=True)
        return {
            "text/html": (
                f'<div class="sl-plot" role="img" aria-label="{label}" style="min-height:{height}px">'
                f'<script type="application/json">{to_json_plotly(fig_dict)}</script>'
                f"<noscript>{label}</noscript></div>"
            )
        }


class LabRenderer(MimetypeRenderer):  # type: ignore[misc]
    """Render for a live notebook: plotly's own type, with a slider where the page has a range input."""

    def to_mimebundle(self, fig_dict: dict[str, Any]) -> dict[str, Any]:
        """Return the ``application/vnd.plotly.v1+json`` form."""
        _, label, initial = described(fig_dict)
        bundle: dict[str, Any] = pio.renderers["plotly_mimetype"].to_mimebundle(
            _with_slider(fig_dict, label, initial)
        )
        return bundle


def described(fig_dict: dict[str, Any]) -> tuple[str, str, int]:
    """Return ``(alt, control label, first frame's index)`` of a figure, or raise ``FigureError``."""
    meta = (fig_dict.get("layout") or {}).get("meta") or {}
    alt = meta.get("alt") if isinstance(meta, dict) else None
    if not isinstance(alt, str) or not alt.strip():
        raise FigureError(
            f"figure without alternative text (layout.meta.alt is {alt!r}): set it to a sentence that "
            'says what the figure shows, fig.update_layout(meta={"alt": "..."})'
        )
    frames = fig_dict.get("frames") or []
    if not frames:
        return alt, "", 0
    control = meta.get("control") or {}
    label, initial = control.get("label"), control.get("initial", 0)
    if not isinstance(label, str) or not label.strip():
        raise FigureError(
            f"figure with {len(frames)} frames and no layout.meta.control.label (got {label!r}): "
            "name what the range input changes, with its unit"
        )
    if not isinstance(initial, int) or not 0 <= initial < len(frames):
        raise FigureError(f"layout.meta.control.initial is {initial!r}, must be from 0 to {len(frames) - 1}")
    if not all(frame.get("name") for frame in frames):
        raise FigureError("a frame without a name: the range input shows the name of its frame as its value")
    return alt, label, initial


def use() -> None:
    """Make figures of this process render for JupyterLab and for the book; call it once in a notebook."""
    pio.renderers["book"] = BookRenderer()
    pio.renderers["lab"] = LabRenderer()
    pio.renderers.default = "lab+book"


def _with_slider(fig_dict: dict[str, Any], label: str, initial: int) -> dict[str, Any]:
    frames = fig_dict.get("frames") or []
    if not frames or fig_dict["layout"].get("sliders"):
        return fig_dict
    figure = copy.deepcopy(fig_dict)
    at_once = {"mode": "immediate", "frame": {"duration": 0, "redraw": True}, "transition": {"duration": 0}}
    steps = [
        {"label": frame["name"], "method": "animate", "args": [[frame["name"]], at_once]} for frame in frames
    ]
    figure["layout"]["sliders"] = [
        {"active": initial, "currentvalue": {"prefix": f"{label}: "}, "pad": {"t": 48}, "steps": steps}
    ]
    return figure
