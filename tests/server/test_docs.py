"""The API describes itself, on a page that needs nothing from elsewhere."""

import json
import re

import pytest


def test_the_page_and_its_parts_come_from_this_server(hello):
    status, raw = hello.fetch("/docs")
    page = raw.decode()
    assert status == 200
    links = re.findall(r"""(?:src|href)=["']([^"']+)|url: '([^']+)'""", page)
    paths = ["".join(link) for link in links]
    assert len(paths) == 4
    for path in paths:
        assert path.startswith("/")
        assert not path.startswith("//")
        assert hello.fetch(path)[0] == 200
    assert "://" not in page


@pytest.mark.parametrize("path", ["/docs/nothing.js", "/docs/..%2f__init__.py", "/docs/__init__.py"])
def test_only_the_parts_are_served(hello, path):
    assert hello.fetch(path)[0] == 404


def test_the_description_has_every_route_and_promises_no_422(hello):
    described = json.loads(hello.fetch("/openapi.json")[1])
    posts = {path for path, methods in described["paths"].items() if "post" in methods}
    assert posts == {"/v1/completions", "/v1/chat/completions", "/tokenize", "/detokenize"}
    for path in posts:
        post = described["paths"][path]["post"]
        assert set(post["responses"]) == {"200", "4XX", "5XX"}
        assert post["responses"]["200"]["content"]["application/json"]["schema"]
        [kind] = post["requestBody"]["content"]
        assert kind == "application/json"
