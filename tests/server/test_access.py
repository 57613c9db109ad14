"""Who may call, from where, and what the log tells of them."""

import json
import logging

import pytest
from lockstep import Lockstep
from raw import Raw
from serving import CHAT, COMPLETION, Gate, Served, eventually, ids, serving

from servelib.server.log import JsonFormatter, LogHandler
from servelib.server.run import BackgroundServer
from servelib.text.tokenizer import Tokenizer

KEY = "s3cret key~"
ORIGIN = "http://localhost:3000"
ROUTES = ["/ready", "/metrics", "/v1/models", "/openapi.json", "/no/such/route"]


@pytest.mark.parametrize("path", ROUTES)
@pytest.mark.parametrize(
    "headers",
    [
        {},
        {"authorization": "Bearer wrong"},
        {"authorization": f"Basic {KEY}"},
        {"authorization": KEY},
        {"authorization": f"Bearer {KEY}x"},
        {"authorization": "Bearer \xe9"},
        {"authorization": "Bearer"},
    ],
    ids=str,
)
def test_without_the_key_every_route_is_a_401_of_the_same_shape(guarded, path, headers):
    status, raw = guarded.fetch(path, **headers)
    error = json.loads(raw)["error"]
    assert status == 401
    assert (error["type"], error["code"], error["param"]) == (
        "invalid_request_error",
        "invalid_api_key",
        None,
    )
    assert KEY not in raw.decode()


@pytest.fixture(scope="module")
def guarded():
    with serving(ids("a"), api_key=KEY) as served:
        yield served


def test_health_needs_no_key_and_the_key_opens_the_rest(guarded):
    assert guarded.health() == 200
    for scheme in ("Bearer", "bearer"):
        assert guarded.fetch("/v1/models", authorization=f"{scheme} {KEY}")[0] == 200
    assert guarded.client.with_options(api_key=KEY).completions.create(**COMPLETION).choices[0].text == "a"
    assert guarded.post("/v1/completions", COMPLETION)[0] == 401


def test_two_keys_are_none(guarded):
    with Raw(guarded.url) as client:
        key = f"authorization: Bearer {KEY}\r\n"
        client.send(f"GET /ready HTTP/1.1\r\nhost: x\r\n{key}{key}\r\n".encode())
        assert client.some().startswith(b"HTTP/1.1 401 ")


def asked_by_a_page(served, method, origin, **headers):
    lines = {"host": "x", "origin": origin, "connection": "close", **headers}
    text = "".join(f"{name.replace('_', '-')}: {value}\r\n" for name, value in lines.items())
    with Raw(served.url) as client:
        return client.send(f"{method} /v1/models HTTP/1.1\r\n{text}\r\n".encode()).rest().decode().lower()


def test_no_page_of_another_origin_may_read_an_answer_unless_it_is_named(hello):
    assert "access-control" not in asked_by_a_page(hello, "GET", ORIGIN)
    with serving(ids("a"), api_key=KEY, allow_origins=(ORIGIN,)) as served:
        preflight = asked_by_a_page(  # which a browser sends without the key
            served, "OPTIONS", ORIGIN, access_control_request_method="POST",
            access_control_request_headers="authorization,content-type,x-stainless-arch",
        )  # fmt: skip
        assert preflight.startswith("http/1.1 200")
        assert f"access-control-allow-origin: {ORIGIN}" in preflight
        assert "x-stainless-arch" in preflight.partition("access-control-allow-headers")[2]
        refused = asked_by_a_page(served, "GET", ORIGIN)
        assert refused.startswith("http/1.1 401")  # and the page can read why
        assert f"access-control-allow-origin: {ORIGIN}" in refused
        assert "access-control-expose-headers: retry-after" in refused
        assert "access-control-allow-origin" not in asked_by_a_page(served, "GET", "http://evil.example")


# The log


@pytest.fixture
def lines(caplog):
    """The fields of each call's line so far."""
    caplog.set_level(logging.DEBUG, logger="servelib")
    return lambda: [
        record.fields | {"level": record.levelname} for record in caplog.records if hasattr(record, "fields")
    ]


def test_a_call_is_one_line_with_its_numbers(lines):
    with serving(ids("abc")) as served:
        for body in (COMPLETION, {**COMPLETION, "stream": True}):
            served.fetch("/v1/completions", json.dumps(body).encode())
        served.post("/v1/completions", {**COMPLETION, "n": 2, "temperature": 1, "max_tokens": 2})
    assert len(lines()) == 3
    for line in lines():
        assert line["id"].startswith("cmpl-")
        assert (line["route"], line["status"], line["prompt_tokens"]) == ("/v1/completions", 200, 2)
        assert 0 <= line["queue_seconds"] <= line["ttft_seconds"] <= line["e2e_seconds"]
        assert json.loads(json.dumps(line)) == line
    assert [line["reason"] for line in lines()] == ["stop", "stop", "length"]
    assert [(line["choices"], line["generated_tokens"]) for line in lines()] == [(1, 4), (1, 4), (2, 4)]


def test_a_call_that_failed_or_was_left_has_its_line_too(lines):
    gate = Gate(free=1)
    with serving(gate) as served:
        served.post("/v1/completions", {**COMPLETION, "n": 0})
        served.fetch("/health")
        with Raw(served.url) as client:
            client.post("/v1/chat/completions", {**CHAT, "max_tokens": 9})
            assert gate.reached.wait(20)
        assert eventually(lambda: len(lines()) == 3)
        gate.opened.set()
    refused, probe, left = lines()
    assert (refused["status"], "reason" in refused) == (400, False)
    assert (probe["route"], probe["level"]) == ("/health", "DEBUG")
    assert (left["status"], left["reason"], left["generated_tokens"]) == (499, "abort", 1)
    assert left["id"].startswith("chatcmpl-")


def say_the_secret_in_every_way(served):
    secret = "xyzzy"
    served.post("/v1/completions", {"model": "scripted", "prompt": secret})
    served.post(
        "/v1/chat/completions", {"model": "scripted", "messages": [{"role": "user", "content": secret}]}
    )
    served.post("/v1/completions", {"model": "scripted", "prompt": secret, "temperature": -1})
    served.post("/v1/completions", {"model": secret, "prompt": secret})
    served.post("/v1/completions", f'{{"prompt": "{secret}'.encode())
    served.post("/v1/completions", {"model": "scripted", "prompt": "fail", "stop": secret})


@pytest.mark.parametrize("told", [False, True])
def test_the_log_holds_nothing_of_what_was_said_unless_asked(capfd, told):
    def script(state):
        if bytes(state.request.prompt_ids) == b"fail":
            raise RuntimeError("boom")
        return ord("q")

    with LogHandler("debug"), serving(script, log_prompts=told) as served:
        say_the_secret_in_every_way(served)
    out, err = capfd.readouterr()
    written = [json.loads(line) for line in err.splitlines()]
    assert out == ""
    assert sum(line["message"] == "request" for line in written) == 6
    assert ("xyzzy" in err) == told
    assert "qqqq" not in err
    if told:
        assert next(line["prompts"] for line in written if "prompts" in line) == ["xyzzy"]


@pytest.mark.parametrize("level", ["error", "off"])
def test_a_fault_of_our_own_is_a_500_without_a_trace_and_a_line_of_the_log(capfd, level):
    class Broken(Tokenizer):
        def encode(self, text, *, field="prompt"):
            raise LookupError("first\nsecond")

    engine = Lockstep(lambda state: 97)
    with LogHandler(level), BackgroundServer(engine, model_id="scripted", tokenizer=Broken()) as server:
        served = Served(server, engine, server.spans)
        status, answer = served.post("/v1/completions", COMPLETION)
        served.client.close()
    assert status == 500
    assert "second" not in json.dumps(answer)
    written = [json.loads(line) for line in capfd.readouterr().err.splitlines()]
    assert sum("second" in line.get("traceback", "") for line in written) == (level != "off")


@pytest.mark.parametrize(("level", "written"), [("off", 0), ("error", 0), ("info", 1), ("debug", 2)])
def test_the_level_decides(capfd, level, written):
    with LogHandler(level), serving(ids("a")) as served:
        served.post("/v1/completions", COMPLETION)
        served.health()
    assert len(capfd.readouterr().err.splitlines()) == written
    assert logging.getLogger("servelib").propagate  # nothing is left of it


def test_a_traceback_is_one_line():
    error = RuntimeError("first\nsecond")
    record = logging.LogRecord("n", logging.ERROR, "p", 1, "it %s", ("broke",), (RuntimeError, error, None))
    line = JsonFormatter().format(record)
    assert "\n" not in line
    assert json.loads(line)["message"] == "it broke"
    assert "second" in json.loads(line)["traceback"]
