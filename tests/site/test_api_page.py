"""The server's ``/docs`` in a browser that reaches nothing else."""

from __future__ import annotations

from playwright.sync_api import Browser

from servelib.engine.naive import NaiveEngine
from servelib.model.scripted import ScriptedModel
from servelib.server.run import BackgroundServer


def test_the_api_page_lists_the_routes_and_runs_one_without_a_network(browser: Browser) -> None:
    with BackgroundServer(NaiveEngine(ScriptedModel([97]))) as server:
        context = browser.new_context()
        page = context.new_page()
        asked: list[str] = []
        wrong: list[object] = []
        page.on("request", lambda request: asked.append(request.url))
        page.on("pageerror", lambda error: wrong.append(error))
        page.on("requestfailed", lambda request: wrong.append(request.url))
        page.goto(server.url + "/docs")
        page.get_by_text("/v1/chat/completions").first.wait_for()
        assert page.locator(".opblock").count() >= 6
        page.locator(".opblock", has_text="/v1/models").first.click()
        page.get_by_role("button", name="Execute").click()
        page.locator(".live-responses-table").get_by_text('"owned_by": "servelib"').wait_for()
        context.close()
    assert all(url.startswith((server.url, "data:")) for url in asked)
    assert wrong == []
