"""The built pages as a reader meets them: each page, both themes, desk and phone, from disk and over HTTP."""

from __future__ import annotations

import functools
import itertools
from collections.abc import Callable
from contextlib import AbstractContextManager
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urldefrag, urlsplit

import pytest
from built import Watched, page_names

Visit = Callable[..., AbstractContextManager[Watched]]

PAGES = page_names() or ["(none built)"]
SIZES = {"desk": (1280, 900), "phone": (390, 844)}
LOADS = {
    "script": "src", "img": "src", "iframe": "src", "source": "src", "video": "src", "audio": "src",
    "link": "href", "embed": "src", "object": "data",
}  # fmt: skip
NOT_LOADED = {"canonical", "next", "prev", "index", "search", "author", "license"}

READABLE = (
    "p", "li", "td", "th", "dt", "h1", "h2", "label", "output", "summary", "pre span", ".sl-plot text",
)  # fmt: skip

# Contrast as WCAG 2 defines it, of what is really behind the text; run on each element given.
CONTRAST = """elements => {
  const canvas = document.createElement("canvas").getContext("2d", { willReadFrequently: true });
  const rgba = colour => {
    canvas.clearRect(0, 0, 1, 1); canvas.fillStyle = colour; canvas.fillRect(0, 0, 1, 1);
    const [r, g, b, a] = canvas.getImageData(0, 0, 1, 1).data; return [r, g, b, a / 255];
  };
  const over = (top, under) => [0, 1, 2].map(i => top[i] * top[3] + under[i] * (1 - top[3])).concat(1);
  const behind = element => {
    const layers = [];
    for (let e = element; e; e = e.parentElement) layers.unshift(rgba(getComputedStyle(e).backgroundColor));
    return layers.reduce((under, layer) => over(layer, under), [255, 255, 255, 1]);
  };
  const luminance = c => c.slice(0, 3).map(v => v / 255)
    .map(v => v <= 0.04045 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4)
    .reduce((sum, v, i) => sum + v * [0.2126, 0.7152, 0.0722][i], 0);
  return elements.filter(e => e.textContent.trim() && e.getClientRects().length).map(e => {
    const back = behind(e), style = getComputedStyle(e);
    const text = over(rgba(e instanceof SVGElement ? style.fill : style.color), back);
    const [low, high] = [luminance(text), luminance(back)].sort((a, b) => a - b);
    return { ratio: (high + 0.05) / (low + 0.05), text: e.textContent.trim().slice(0, 40) };
  });
}"""


class Links(HTMLParser):
    """What a page's HTML loads, points at, and can be pointed at."""

    def __init__(self, path: Path) -> None:
        super().__init__()
        self.loads: list[str] = []
        self.anchors: list[str] = []
        self.ids: set[str] = set()
        self.images_without_alt: list[str] = []
        self.feed(path.read_text())

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        given = {name: value or "" for name, value in attrs}
        self.ids |= {given[name] for name in ("id", "name") if name in given}
        if tag == "a" and "href" in given:
            self.anchors.append(given["href"])
        if tag == "img" and "alt" not in given:
            self.images_without_alt.append(given.get("src", "?"))
        if not (tag == "link" and set(given.get("rel", "").split()) & NOT_LOADED):
            self.loads += [given[LOADS[tag]]] if LOADS.get(tag) in given else []
            self.loads += [part.split()[0] for part in given.get("srcset", "").split(",") if part.strip()]


parse = functools.cache(Links)


@pytest.mark.parametrize("name", PAGES)
def test_page_is_whole_without_a_network(site: Path, name: str) -> None:
    for address in parse(site / name).loads:
        assert not urlsplit(address).netloc, f"{name} loads from elsewhere: {address}"
        if urlsplit(address).scheme != "data":
            assert (site / name).parent.joinpath(unquote(urlsplit(address).path)).exists(), address


@pytest.mark.parametrize("name", PAGES)
def test_internal_links_resolve(site: Path, name: str) -> None:
    for address in parse(site / name).anchors:
        target, fragment = urldefrag(address)
        if urlsplit(address).scheme:
            continue
        path = (
            site / name if not target else ((site / name).parent / unquote(urlsplit(target).path)).resolve()
        )
        assert path.exists(), f"{name} links to {address}, which is not there"
        if fragment and path.suffix == ".html":
            assert unquote(fragment) in parse(path).ids, f"{name} links to {address}: no such place"


@pytest.mark.parametrize("name", PAGES)
def test_images_have_alternative_texts(site: Path, name: str) -> None:
    assert parse(site / name).images_without_alt == []


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("theme", ["light", "dark"])
@pytest.mark.parametrize("name", PAGES)
def test_page_reads_well(site: Path, visit: Visit, name: str, theme: str, size: str) -> None:
    with visit((site / name).as_uri(), theme, SIZES[size]) as seen:
        page = seen.page
        assert page.evaluate("document.documentElement.dataset.theme") == theme
        assert seen.problems == []
        assert [url for url in seen.requested if not url.startswith(("file:", "data:", "blob:"))] == []

        assert page.get_by_role("heading", level=1).count() == 1
        assert page.evaluate("document.documentElement.scrollWidth <= innerWidth"), (
            "the page scrolls sideways"
        )

        for plot in page.locator(".sl-plot").all():
            assert (plot.get_attribute("aria-label") or "").strip()
            assert plot.locator("svg .xtick, svg .ytick, svg .slice, svg .trace").count() > 0, "nothing drawn"
            box, inside = plot.bounding_box(), plot.locator("svg.main-svg").first.bounding_box()
            assert box is not None
            assert inside is not None
            assert inside["width"] <= box["width"] + 1
            assert inside["height"] <= box["height"] + 1, "the figure runs into what follows"

        readable = ", ".join(f".bd-article {selector}" for selector in READABLE)
        poor = [x for x in page.locator(readable).evaluate_all(CONTRAST) if x["ratio"] < 4.5]
        assert poor == []


@pytest.mark.parametrize("name", PAGES)
def test_range_inputs_move_their_figures_by_keyboard(site: Path, visit: Visit, name: str) -> None:
    with visit((site / name).as_uri()) as seen:
        controls = seen.page.locator(".sl-control").all()
        for control in controls:
            knob, said = control.locator("input[type=range]"), control.locator("output")
            assert control.locator("label").inner_text().strip()
            drawn = """knob => JSON.stringify(
                knob.closest('.sl-control').nextElementSibling.querySelector('.js-plotly-plot').data
                    .map(trace => [trace.x, trace.y].map(values => Array.from(values ?? []))))"""
            knob.press("Home")
            shown = []
            for _ in range(int(knob.get_attribute("max") or 0) + 1):
                assert said.inner_text() == knob.get_attribute("aria-valuetext")
                shown.append((said.inner_text(), knob.evaluate(drawn)))
                knob.press("ArrowRight")
            assert len(shown) > 1
            assert len({text for text, _ in shown}) == len(shown), "two positions say the same"
            for (_, before), (_, after) in itertools.pairwise(shown):
                assert before != after, "the knob moved and the figure did not"
            knob.press("ArrowLeft")
            assert said.inner_text() == shown[-2][0]
        assert seen.problems == []


def test_figures_follow_a_change_of_theme(site: Path, visit: Visit) -> None:
    with_figures = [name for name in PAGES if 'class="sl-plot"' in (site / name).read_text()]
    assert with_figures, "no page has a figure"
    with visit((site / with_figures[0]).as_uri()) as seen:
        colour = "getComputedStyle(document.querySelector('.sl-plot :is(.xtick, .ytick) text')).fill"
        light = seen.page.evaluate(colour)
        seen.page.evaluate("document.documentElement.dataset.theme = 'dark'")
        seen.page.wait_for_function(f"light => {colour} !== light", arg=light)
        assert seen.problems == []


def test_printing_draws_every_figure_for_white_paper(site: Path, visit: Visit) -> None:
    with_figures = [name for name in PAGES if 'class="sl-plot"' in (site / name).read_text()]
    with visit((site / with_figures[0]).as_uri(), "dark") as seen:
        page = seen.page
        page.evaluate("dispatchEvent(new Event('beforeprint'))")
        assert page.evaluate("document.documentElement.dataset.theme") == "light"
        page.evaluate("dispatchEvent(new Event('afterprint'))")
        assert page.evaluate("document.documentElement.dataset.theme") == "dark"


def test_front_door_leads_to_the_book(over_http: str, visit: Visit) -> None:
    with visit(f"{over_http}/book/index.html") as seen:
        seen.page.wait_for_load_state("networkidle")
        seen.page.goto(f"{over_http}/")
        seen.page.wait_for_url("**/book/index.html")
        seen.page.wait_for_load_state("networkidle")
        assert seen.problems == []


@pytest.mark.parametrize("name", PAGES)
def test_page_works_over_http(over_http: str, visit: Visit, name: str) -> None:
    with visit(f"{over_http}/{name}") as seen:
        seen.page.wait_for_load_state("networkidle")
        assert seen.problems == []
        assert all(url.startswith((over_http, "data:", "blob:")) for url in seen.requested)
