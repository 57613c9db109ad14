from __future__ import annotations

import functools
import http.server
import os
import threading
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path

import browser as browsers
import pytest
from built import SITE, Watched, page_names
from playwright.sync_api import Browser, Request, sync_playwright

# What keeps a headless browser from talking to anyone but the page, also as root in a container.
QUIET = (
    "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-background-networking",
    "--disable-component-update", "--disable-sync",
)  # fmt: skip


def failure(request: Request) -> list[str]:
    """A request that failed, unless the page was left while it ran (as the front door is, at once)."""
    return (
        [] if request.failure == "net::ERR_ABORTED" else [f"failed request {request.url}: {request.failure}"]
    )


@pytest.fixture(scope="session")
def site() -> Path:
    if not page_names():
        pytest.fail(f"no built pages in {SITE}: run make book first, or set SERVELIB_SITE", pytrace=False)
    return SITE


@pytest.fixture(scope="session")
def browser() -> Iterator[Browser]:
    found = browsers.find()
    if found is None:
        says = "no Chromium on this machine (set SERVELIB_CHROMIUM, or run tests/site/browser.py)"
        if os.environ.get("CI"):
            pytest.fail(says, pytrace=False)
        pytest.skip(says)
    with sync_playwright() as playwright:
        started = playwright.chromium.launch(executable_path=found, args=list(QUIET))
        yield started
        started.close()


@pytest.fixture(scope="session")
def visit(browser: Browser) -> Callable[..., AbstractContextManager[Watched]]:
    """``with visit(url, theme=, size=) as seen:`` opens a page, and draws and waits for its figures."""

    @contextmanager
    def open_page(url: str, theme: str = "light", size: tuple[int, int] = (1280, 900)) -> Iterator[Watched]:
        context = browser.new_context(
            viewport={"width": size[0], "height": size[1]}, color_scheme=theme, reduced_motion="reduce"
        )
        context.add_init_script(f"localStorage.setItem('mode', '{theme}')")
        seen = Watched(context.new_page())
        page = seen.page
        page.on("request", lambda request: seen.requested.append(request.url))
        page.on("requestfailed", lambda request: seen.problems.extend(failure(request)))
        page.on(
            "response", lambda r: seen.problems.append(f"{r.status} {r.url}") if r.status >= 400 else None
        )
        page.on("pageerror", lambda error: seen.problems.append(f"page error {error}"))
        page.on(
            "console",
            lambda m: seen.problems.append(f"console {m.text}") if m.type in ("error", "warning") else None,
        )
        page.goto(url, wait_until="load")
        for plot in page.locator(".sl-plot").all():
            plot.scroll_into_view_if_needed()
            plot.locator("svg.main-svg").first.wait_for(state="attached")
        page.wait_for_function("[...document.querySelectorAll('.sl-plot')].every(e => e.dataset.drawn)")
        try:
            yield seen
        finally:
            context.close()

    return open_page


@pytest.fixture
def over_http(site: Path) -> Iterator[str]:
    class Quiet(http.server.SimpleHTTPRequestHandler):
        def log_message(self, *args: object) -> None:
            pass

    handler = functools.partial(Quiet, directory=str(site))
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()
