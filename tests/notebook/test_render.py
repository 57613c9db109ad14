from __future__ import annotations

import json
import re
import subprocess
import sys
from html.parser import HTMLParser

import plotly.graph_objects as go
import pytest

from servelib.notebook.render import BookRenderer, FigureError, LabRenderer


def figure(meta: object = None, frames: int = 0, name: str = "frame {}") -> dict:
    fig = go.Figure(go.Scatter(x=[1, 2], y=[3, 4], name="</script><b>"))
    fig.frames = [go.Frame(name=name.format(i), data=[go.Scatter(y=[i, i])]) for i in range(frames)]
    fig.update_layout(meta=meta)
    return fig.to_dict()


WITH_CONTROL = {"alt": "Two curves.", "control": {"label": "Arrival rate (requests/s)", "initial": 1}}


def test_book_form_is_labelled_and_holds_the_figure() -> None:
    fig = figure({"alt": 'It "rises" & <falls>.'})
    text = BookRenderer().to_mimebundle(fig)["text/html"]
    seen: list[tuple[str, dict]] = []

    class Tags(HTMLParser):
        def handle_starttag(self, tag: str, attrs: list) -> None:
            seen.append((tag, dict(attrs)))

    Tags().feed(text)
    assert [tag for tag, _ in seen] == ["div", "script", "noscript"], "the figure's own text became markup"
    assert seen[0][1]["role"] == "img"
    assert seen[0][1]["aria-label"] == 'It "rises" & <falls>.'
    body = re.search(r'<script type="application/json">(.*)</script>', text, re.S)
    assert body
    assert json.loads(body[1])["data"][0]["name"] == "</script><b>"


@pytest.mark.parametrize("meta", [None, {}, {"alt": ""}, {"alt": "  "}, {"alt": 3}, ["alt"], "alt"])
def test_figure_without_alt_is_refused(meta: object) -> None:
    for renderer in (BookRenderer(), LabRenderer()):
        with pytest.raises(FigureError, match=r"layout\.meta\.alt"):
            renderer.to_mimebundle(figure(meta))


@pytest.mark.parametrize(
    ("control", "says"),
    [
        (None, "control.label"),
        ({"label": " "}, "control.label"),
        ({"label": "rate", "initial": 3}, "from 0 to 2"),
        ({"label": "rate", "initial": -1}, "from 0 to 2"),
        ({"label": "rate", "initial": "1"}, "from 0 to 2"),
    ],
)
def test_frames_need_a_control_that_fits_them(control: object, says: str) -> None:
    with pytest.raises(FigureError, match=re.escape(says)):
        BookRenderer().to_mimebundle(figure({"alt": "A.", "control": control}, frames=3))


def test_frames_need_names() -> None:
    with pytest.raises(FigureError, match="without a name"):
        BookRenderer().to_mimebundle(figure(WITH_CONTROL, frames=3, name=""))


def test_lab_form_has_a_slider_and_leaves_the_figure_alone() -> None:
    fig = figure(WITH_CONTROL, frames=3)
    before = json.dumps(fig, default=str)
    mime = "application/vnd.plotly.v1+json"
    shown = LabRenderer().to_mimebundle(fig)[mime]
    (slider,) = shown["layout"]["sliders"]
    assert [step["args"][0] for step in slider["steps"]] == [["frame 0"], ["frame 1"], ["frame 2"]]
    assert slider["active"] == 1
    assert json.dumps(fig, default=str) == before
    assert "sliders" not in LabRenderer().to_mimebundle(figure({"alt": "A."}))[mime]["layout"]


def test_only_use_changes_how_figures_show() -> None:
    code = (
        "import plotly.io as pio; before = pio.renderers.default; import servelib.notebook.render as render; "
        "assert pio.renderers.default == before and 'book' not in pio.renderers; "
        "render.use(); assert pio.renderers.default == 'lab+book'"
    )
    subprocess.run([sys.executable, "-c", code], check=True)
