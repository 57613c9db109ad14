"""The lab page: Python in the browser runs the package's files and prints the command line's numbers."""

from __future__ import annotations

import json
import re
import zipfile
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from urllib.parse import parse_qs, urlsplit

import pytest
from built import ROOT, Watched
from playwright.sync_api import Page, Route

from servelib.cli import main
from servelib.harness.report import COLUMNS

Visit = Callable[..., AbstractContextManager[Watched]]
LAB = "book/lab.html"
LOAD = 90_000  # ms, to load Python on a busy machine
STATE = "document.getElementById('sl-lab').dataset.state"


@pytest.fixture
def start(over_http: str, visit: Visit) -> Visit:
    """``with start("rate=8") as seen:`` opens the lab with these settings, starts it and waits."""

    @contextmanager
    def started(query: str = "", **how: object) -> Iterator[Watched]:
        with visit(f"{over_http}/{LAB}?{query}", **how) as seen:
            about = seen.page.evaluate("window.servingTokensLab")
            if not about["local"]:
                pytest.skip("the book was built without npm: Python would come from elsewhere")
            seen.page.get_by_role("button", name="Start the lab").click()
            answered(seen.page)
            yield seen

    return started


def answered(page: Page) -> None:
    page.wait_for_function(f"['shown', 'complete', 'broken'].includes({STATE})", timeout=LOAD)


def numbers(page: Page) -> list[str]:
    return page.locator(".sl-lab-numbers dd").all_inner_texts()


def longest_queue(page: Page) -> int:
    label = page.locator(".sl-lab-plot").first.get_attribute("aria-label") or ""
    found = re.search(r"how many wait, at most (\d+)", label)
    assert found, label
    return int(found[1])


def test_the_archive_holds_the_packages_files_unchanged(site: Path) -> None:
    with zipfile.ZipFile(site / "_static" / "vendor" / "servelib.zip") as archive:
        names = archive.namelist()
        assert {"servelib/sim/lab.py", "servelib/engine/naive.py", "servelib/harness/drive.py"} <= set(names)
        for name in names:
            assert archive.read(name) == (ROOT / name).read_bytes(), name


def test_printed_numbers_are_the_command_lines(start: Visit, capsys) -> None:
    wanted = {"engine": "cached", "rate": "9", "requests": "80", "seed": "3", "slo_ttft": "0.05"}
    arguments = ["--engine", "cached", "--rate", "9", "--requests", "80", "--seed", "3", "--slo-ttft", "0.05"]
    with start("&".join(f"{name}={value}" for name, value in wanted.items())) as seen:
        page = seen.page
        assert {name: page.locator(f"#sl-lab-{name}").input_value() for name in wanted} == wanted
        assert main(["simulate", *arguments]) == 0
        table = capsys.readouterr().out
        row = next(line for line in table.splitlines() if line.split() and line.split()[0] in ("9", "9.0"))
        shown = numbers(page)
        assert len(shown) == len(COLUMNS)
        assert [value for value in row.split() if value in shown][-len(shown) :] == shown
        conditions = page.get_by_text("Conditions: ").inner_text()
        assert conditions in " ".join(table.split())
        assert seen.problems == []


def test_a_faster_rate_by_keyboard_makes_the_queue_grow(over_http: str, start: Visit) -> None:
    with start("rate=2&requests=60") as seen:  # then 8 a second, past what the engine can take
        page = seen.page
        before = longest_queue(page)
        page.wait_for_function(f"{STATE} === 'complete'", timeout=LOAD)
        for _ in range(16):  # two doublings
            page.locator("#sl-lab-slide").press("ArrowRight")
        page.wait_for_function(f"{STATE} === 'complete'", timeout=LOAD)
        assert longest_queue(page) > before + 5
        assert parse_qs(urlsplit(page.url).query) == {"rate": ["8"], "requests": ["60"]}
        assert "8 requests per second" in (
            page.locator(".sl-lab-plot").last.get_attribute("aria-label") or ""
        )

        said = page.locator("#sl-lab output")
        page.locator("#sl-lab-moment").press("End")
        assert said.inner_text().endswith("0 waiting, 0 running, 60 done")
        page.locator("#sl-lab-moment").press("Home")
        assert said.inner_text().startswith("0.00 s:")
        assert seen.problems == []
        assert all(url.startswith((over_http, "data:", "blob:")) for url in seen.requested)


def test_what_cannot_be_is_said_by_its_field(start: Visit) -> None:
    with start("requests=30") as seen:
        page = seen.page
        page.locator("#sl-lab-prompt_low").fill("500")
        error = page.locator("#sl-lab-prompt_low-error")
        error.filter(has_text="at most the longest, 96").wait_for()
        assert page.locator("#sl-lab-prompt_low").get_attribute("aria-invalid") == "true"
        page.locator("#sl-lab-prompt_low").fill("40")
        page.wait_for_function("!document.getElementById('sl-lab-prompt_low-error').textContent")
        assert page.locator("#sl-lab-prompt_low").get_attribute("aria-invalid") == "false"
        page.locator("#sl-lab-model").select_option("llama3-70b")
        page.locator("#sl-lab-machine").select_option("rtx4090")
        answered(page)
        assert seen.problems == []


def test_the_lab_fits_a_phone_in_the_dark(start: Visit) -> None:
    with start("engine=cached&requests=40", theme="dark", size=(390, 844)) as seen:
        assert seen.page.evaluate("document.documentElement.scrollWidth <= innerWidth")
        text = "document.querySelector('.sl-lab-plot .xtick text')"
        wanted = seen.page.evaluate("getComputedStyle(document.body).color")
        assert seen.page.evaluate(f"getComputedStyle({text}).fill") == wanted
        assert seen.problems == []


def test_from_disk_the_page_says_how_to_serve_it(site: Path, visit: Visit) -> None:
    with visit((site / LAB).as_uri()) as seen:
        assert "make serve-book" in seen.page.locator("#sl-lab").inner_text()
        assert seen.page.get_by_role("button", name="Start the lab").count() == 0
        assert seen.problems == []


def test_every_file_that_the_page_may_load_is_named_with_its_hash(site: Path) -> None:
    found = re.search(r"window\.servingTokensLab = (\{.*\});", (site / LAB).read_text())
    assert found
    about = json.loads(found[1])
    assert {file["name"] for file in about["files"]} >= {"pyodide.mjs", "pyodide.asm.wasm"}
    assert all(re.fullmatch(r"sha384-[A-Za-z0-9+/]{64}", file["integrity"]) for file in about["files"])
    assert about["base"] == "vendor/pyodide/" if about["local"] else about["version"] in about["base"]


def test_a_file_changed_on_its_way_from_elsewhere_is_not_run(
    site: Path, over_http: str, visit: Visit
) -> None:
    elsewhere = "https://copies.example/"

    def fulfil(route: Route) -> None:
        name = route.request.url.removeprefix(elsewhere)
        kept = site / "_static" / "vendor" / "pyodide" / name
        body = kept.read_bytes() if kept.exists() and name != "pyodide.mjs" else b"postMessage('mine now')"
        route.fulfill(body=body, headers={"Access-Control-Allow-Origin": "*"})

    with visit(f"{over_http}/{LAB}") as seen:
        page = seen.page
        page.context.route(f"{elsewhere}**", fulfil)
        page.evaluate(f"Object.assign(window.servingTokensLab, {{ local: false, base: '{elsewhere}' }})")
        page.get_by_role("button", name="Start the lab").click()
        answered(page)
        said = page.get_by_role("status").inner_text()
        assert said == f"The lab stopped: {elsewhere}pyodide.mjs is not the file this page names"
        assert page.get_by_role("button", name="Start the lab").is_enabled()
