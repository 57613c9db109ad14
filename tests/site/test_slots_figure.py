"""Chapter 6's page: the picture of slots goes through time by keyboard, and reads without colour."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from pathlib import Path

import pytest
from built import Watched
from playwright.sync_api import Locator

Visit = Callable[..., AbstractContextManager[Watched]]
BARS = """plot => plot.querySelector(".js-plotly-plot").data.filter(trace => trace.type === "bar")
  .map(({ name, marker, x, y, base }) => ({
    kind: name, pattern: marker.pattern.shape, y: Array.from(y), base: Array.from(base),
    x: Array.from(x, length => length ?? 0),
  }))"""


@pytest.fixture(scope="module")
def seen(site: Path, visit: Visit) -> Iterator[Watched]:
    path = site / "notebooks" / "ch06_batching.html"
    assert path.exists(), "the book was built without chapter 6"
    with visit(path.as_uri()) as watched:
        yield watched
        assert watched.problems == []


@pytest.fixture
def picture(seen: Watched) -> Locator:
    plot = seen.page.locator('.sl-plot[aria-label*="letters A to L"]')
    assert plot.count() == 1
    return plot


def test_time_runs_forward_and_no_place_is_held_twice(picture: Locator) -> None:
    knob = picture.locator("xpath=preceding-sibling::*[1]").locator("input[type=range]")
    said = picture.locator("xpath=preceding-sibling::*[1]").locator("output")
    knob.press("Home")
    assert said.inner_text().endswith("static: nobody runs; continuous: nobody runs")
    before = 0.0
    for _ in range(int(knob.get_attribute("max") or 0)):
        knob.press("ArrowRight")
        bars = picture.evaluate(BARS)
        now = sum(length for trace in bars for length in trace["x"])
        assert now >= before
        before = now
    for engine in (bars[:3], bars[3:]):
        held: dict[int, list[tuple[float, float]]] = {}
        for trace in engine:
            for place, start, length in zip(trace["y"], trace["base"], trace["x"], strict=True):
                assert length > 0, "the last frame is the whole picture"
                held.setdefault(place, []).append((start, start + length))
        for pieces in held.values():
            pieces.sort()
            assert all(one[1] <= other[0] + 1e-6 for one, other in itertools.pairwise(pieces))


def test_kinds_and_requests_are_told_apart_without_colour(picture: Locator) -> None:
    bars = picture.evaluate(BARS)
    assert {trace["kind"]: trace["pattern"] for trace in bars} == {"prompt": "x", "answer": "", "wasted": "/"}
    assert sum(bars[2]["x"]) > 0, "static batching wastes"
    assert sum(bars[5]["x"]) == 0, "continuous batching does not"
    letters = picture.locator("svg .scatterlayer .textpoint text").all_text_contents()
    assert sorted(letters) == sorted("ABCDEFGHIJKL" * 2)
