"""What live panels have in common: sliders, the look of a live figure, and a line for messages."""

from __future__ import annotations

import html
import math
from collections.abc import Sequence
from typing import Any

import ipywidgets as w
import plotly.graph_objects as go

from servelib.notebook.slider_names import SliderNames

_CLASS = "servelib-knobs"
_TEXT = "#787f89"  # between white and black: a live notebook may have either behind it
_LINE = "rgba(128,136,145,0.3)"


class Panel(w.VBox):  # type: ignore[misc]
    """Controls in a grid, ``body`` below, and a status line. A moved control calls ``refresh``.

    A subclass makes its parts first, then calls this, then ``refresh()``.
    """

    def __init__(self, controls: Sequence[Any], body: Sequence[Any]) -> None:
        self.status = w.HTML()
        for control in controls:
            control.observe(self._moved, names="value")
        grid = w.GridBox(
            list(controls),
            layout={
                "grid_template_columns": "repeat(auto-fit, minmax(min(100%, 430px), 1fr))",
                "grid_gap": "2px 32px",
                "overflow": "visible",
            },
        )
        super().__init__([grid, *body, self.status, SliderNames(panel=_CLASS)])
        self.add_class(_CLASS)

    def refresh(self) -> None:
        """Bring what is shown up to the controls."""
        raise NotImplementedError

    def _moved(self, _change: Any) -> None:
        try:
            self.refresh()
        except Exception as error:  # a callback's exception would be lost in the kernel's log
            self._say(f"{type(error).__name__}: {error}", alert=True)

    def _say(self, text: str, *, alert: bool = False) -> None:
        role = "alert" if alert else "status"
        self.status.value = f'<div role="{role}">{html.escape(text)}</div>'


def log_slider(name: str, value: float, low: float, high: float) -> Any:
    """Four steps to each doubling, counted from ``low``."""
    return w.FloatLogSlider(
        value=value,
        base=2,
        min=math.log2(low),
        max=math.log2(high),
        step=0.25,
        readout_format=".3g",
        **_look(name),
    )


def range_slider(name: str, value: tuple[int, int], high: int) -> Any:
    """Lengths make new runs, which takes a moment: it answers when the handle is let go."""
    return w.IntRangeSlider(value=value, min=1, max=high, continuous_update=False, **_look(name))


def slider(name: str, value: float, low: float, high: float, step: float) -> Any:
    """Even steps. It answers when the handle is let go."""
    return w.FloatSlider(
        value=value,
        min=low,
        max=high,
        step=step,
        continuous_update=False,
        readout_format=".3g",
        **_look(name),
    )


def pick_slider(name: str, value: int, options: Sequence[int]) -> Any:
    """One of ``options``, or the ``value`` it starts from."""
    known = sorted({*options, value})
    return w.SelectionSlider(
        value=value, options=[(f"{number:,}", number) for number in known], **_look(name)
    )


def dropdown(name: str, value: str, options: Sequence[tuple[str, str]]) -> Any:
    """One of the (label, value) pairs."""
    return w.Dropdown(value=value, options=options, **_look(name))


def live(figure: go.Figure) -> Any:
    """The figure as a ``FigureWidget`` that follows its window and reads on light and dark."""
    figure.update_layout(font={"color": _TEXT, "size": 12}, autosize=True)
    figure.update_annotations(font={"color": _TEXT, "size": 14})
    figure.update_xaxes(gridcolor=_LINE, linecolor=_LINE, zeroline=False)
    figure.update_yaxes(gridcolor=_LINE, linecolor=_LINE, zeroline=False)
    widget: Any = go.FigureWidget(figure)
    widget._config = {"responsive": True, "displayModeBar": False}  # it has no public name
    return widget


def _look(name: str) -> dict[str, Any]:
    return {
        "description": name,
        "tooltip": name,
        "style": {"description_width": "165px"},
        "layout": {"width": "auto"},
    }
