"""Hanging up, failing, stopping: nothing is computed for nobody, and nothing is left behind."""

import dataclasses
import http.client
import json
import os
import signal
import socket
import subprocess
import sys
import threading
import urllib.parse

import openai
import pytest
from raw import Raw
from serving import CHAT, COMPLETION, Gate, Served, eventually, ids, serving

from servelib.engine.naive import NaiveEngine
from servelib.model.scripted import SCRIPTED, ScriptedModel
from servelib.server.run import BackgroundServer, BindError, listen, serve, url_of


def ask(served, path, body):
    """Send a request and return the open connection, nothing read."""
    connection = http.client.HTTPConnection(urllib.parse.urlsplit(served.url).netloc, timeout=30)
    connection.request("POST", path, json.dumps(body), {"content-type": "application/json"})
    return connection


ENDPOINTS = [("/v1/completions", {**COMPLETION, "max_tokens": 1000}), ("/v1/chat/completions", CHAT)]


@pytest.mark.parametrize(("path", "body"), ENDPOINTS)
@pytest.mark.parametrize("stream", [True, False])
@pytest.mark.parametrize("free", [0, 3])
def test_a_caller_who_hangs_up_is_aborted(path, body, stream, free):
    """In prefill (no token yet) and in decode (after three)."""
    gate = Gate(free=free)
    with serving(gate) as served:
        connection = ask(served, path, {**body, "stream": stream})
        assert gate.reached.wait(20)
        loop = served.server.app.state.service.loop
        told, abort = threading.Event(), loop.abort
        loop.abort = lambda request_id: (abort(request_id), told.set())
        connection.close()
        assert told.wait(20)  # while the model is still inside its step
        gate.opened.set()
        assert eventually(lambda: not served.engine.has_work)
        assert len(served.engine.model.calls) == free + 1  # not one step more
        assert served.health() == 200


def test_a_caller_who_hangs_up_in_the_queue_costs_nothing():
    gate = Gate()
    with serving(gate) as served:
        first = ask(served, "/v1/completions", {**COMPLETION, "max_tokens": 2})
        assert gate.reached.wait(20)
        loop = served.server.app.state.service.loop
        told, abort = threading.Event(), loop.abort
        queued = ask(served, "/v1/completions", COMPLETION)
        assert eventually(lambda: loop._commands.qsize() == 1)
        loop.abort = lambda request_id: (abort(request_id), told.set())
        queued.close()
        assert told.wait(20)
        gate.opened.set()
        assert json.loads(first.getresponse().read())["choices"][0]["text"] == "aa"
        first.close()
        assert eventually(lambda: not served.engine.has_work)
        assert len(served.engine.model.calls) == 2


def test_a_stop_string_ends_the_work_in_the_engine():
    with serving(lambda state: ord("ab."[len(state.output_ids) % 3])) as served:
        answer = served.client.completions.create(**COMPLETION, max_tokens=2000, stop=".")
        assert (answer.choices[0].text, answer.usage.completion_tokens) == ("ab", 3)
        assert eventually(lambda: not served.engine.has_work)


@pytest.mark.parametrize(("path", "body"), ENDPOINTS)
@pytest.mark.parametrize("stream", [True, False])
def test_a_model_that_fails_at_once_is_a_500_in_both_modes(path, body, stream):
    def script(state):
        raise RuntimeError("secret detail")

    with serving(script) as served:
        status, answer = served.post(path, {**body, "stream": stream})
        assert status == 500
        assert answer["error"]["type"] == "server_error"
        assert "secret" not in answer["error"]["message"]
        assert served.health() == 200


def test_a_model_that_fails_mid_stream_ends_it_with_an_error_event_and_the_server_lives():
    bad = threading.Event()
    bad.set()

    def script(state):
        if bad.is_set() and len(state.output_ids) == 2:
            raise RuntimeError("secret detail")
        return ids("abc")[len(state.output_ids)]

    with serving(script) as served:
        status, raw = served.fetch("/v1/completions", json.dumps({**COMPLETION, "stream": True}).encode())
        lines = raw.decode().strip().split("\n\n")
        assert status == 200
        assert json.loads(lines[-1].removeprefix("data: "))["error"]["type"] == "server_error"
        assert "secret" not in raw.decode()
        assert [json.loads(line[6:])["choices"][0]["text"] for line in lines[:-1]] == ["a", "b"]
        with pytest.raises(openai.APIError):
            list(served.client.completions.create(**COMPLETION, stream=True))
        assert served.post("/v1/completions", COMPLETION)[0] == 500
        bad.clear()
        assert served.client.completions.create(**COMPLETION).choices[0].text == "abc"


class DyingEngine(NaiveEngine):
    """Its ``step`` raises when told to."""

    doomed = False

    def step(self):
        if self.doomed:
            raise RuntimeError("secret detail")
        return super().step()


def test_a_dead_engine_turns_health_and_ends_streams():
    gate = Gate(free=2)
    engine = DyingEngine(ScriptedModel(gate))
    with BackgroundServer(engine) as server:
        client = openai.OpenAI(base_url=f"{server.url}/v1", api_key="none", max_retries=0, timeout=30)
        with client:
            stream = iter(client.completions.create(**COMPLETION, max_tokens=100, stream=True))
            assert next(stream).choices[0].text == "a"
            assert gate.reached.wait(20)
            engine.doomed = True
            gate.opened.set()
            with pytest.raises(openai.APIError, match="the engine died"):
                list(stream)
            with pytest.raises(openai.InternalServerError) as refused:
                client.completions.create(**COMPLETION)
            assert refused.value.status_code == 503
            assert "secret" not in str(refused.value)
            health = http.client.HTTPConnection(urllib.parse.urlsplit(server.url).netloc, timeout=30)
            health.request("GET", "/health")
            assert health.getresponse().status == 503
            health.close()


def test_leaving_a_background_server_ends_streams_and_threads_and_frees_the_engine():
    before = set(threading.enumerate())
    engine = NaiveEngine(ScriptedModel([ord("a")]), use_cache=True)
    with BackgroundServer(engine) as server:
        connections = []
        for path, body in ENDPOINTS:
            connection = http.client.HTTPConnection(urllib.parse.urlsplit(server.url).netloc, timeout=30)
            body = json.dumps({**body, "stream": True, "max_tokens": 1900})
            connection.request("POST", path, body, {"content-type": "application/json"})
            connections.append(connection)
        assert connections[0].getresponse().read(1)
    assert set(threading.enumerate()) == before
    assert not engine.has_work
    for connection in connections:
        connection.close()
    with BackgroundServer(engine) as again:  # the engine can be served again
        assert again.url != ""


def test_a_port_in_use_is_one_line_before_anything_is_built():
    built = []
    with listen("127.0.0.1", 0) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(
            BindError, match=rf"^cannot listen on 127.0.0.1:{port}: .*in use.*--port$"
        ) as caught:
            serve(lambda: built.append(1), port=port)
    assert "\n" not in str(caught.value)
    assert built == []


@pytest.mark.parametrize(
    ("host", "port"), [("192.0.2.1", 0), ("127.0.0.1", 70_000), ("a" * 300, 0), ("a\0b", 0), ("a..b", 0)]
)
def test_an_address_that_is_not_ours_is_a_bind_error(host, port):
    with pytest.raises(BindError, match="cannot listen on"):
        listen(host, port)


def test_urls_of_both_families():
    with listen("127.0.0.1", 0) as listener:
        assert url_of(listener) == f"http://127.0.0.1:{listener.getsockname()[1]}"


def test_a_tokenizer_too_small_for_the_model_is_refused():
    bigger = dataclasses.replace(SCRIPTED, vocab_size=300)
    with pytest.raises(ValueError, match="at least 300"):
        BackgroundServer(NaiveEngine(ScriptedModel([1], bigger)))


@pytest.mark.parametrize("stream", [True, False])
def test_when_the_engine_dies_nobody_hangs_and_everybody_is_told(stream):
    """Under the hands of one who decodes and of some who wait."""
    gate = Gate(free=2)
    engine = DyingEngine(ScriptedModel(gate))
    with BackgroundServer(engine) as server:
        served = Served(server, engine, server.spans)
        callers = [
            Raw(server.url).post("/v1/completions", {**COMPLETION, "max_tokens": 99, "stream": stream})
            for _ in range(8)
        ]
        assert gate.reached.wait(20)
        assert eventually(lambda: served.metrics()["servelib_requests_waiting"] == 7)
        engine.doomed = True
        gate.opened.set()
        assert eventually(lambda: served.health() == 503)
        assert served.fetch("/ready")[0] == 503
        told = []
        for caller in callers:
            with caller:
                said = b""
                while b"the engine died" not in said:
                    more = caller.some()
                    assert more
                    said += more
                told.append(said.split(b" ", 2)[1])
        # Who had seen a token was told inside the stream, the rest by the status.
        assert sorted(told) == [b"200"] * stream + [b"503"] * (8 - stream)
        signals = served.metrics()
        assert signals['servelib_requests_finished_total{reason="error"}'] == 8
        assert signals["servelib_requests_running"] == signals["servelib_requests_waiting"] == 0
        assert not engine.has_work
        served.client.close()


PROGRAM = """
from servelib.engine.naive import NaiveEngine
from servelib.model.scripted import ScriptedModel
from servelib.server.run import serve
from servelib.server.settings import ServerSettings
on_ready = lambda url: print(url, flush=True)
settings = ServerSettings(grace=1000.0)  # which an idle server does not wait for
serve(lambda: NaiveEngine(ScriptedModel([97])), port=0, on_ready=on_ready, settings=settings)
print("clean", flush=True)
"""


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_ends_serve_cleanly(number):
    process = subprocess.Popen(
        [sys.executable, "-c", PROGRAM], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    try:
        url = process.stdout.readline().strip()
        assert url.startswith("http://127.0.0.1:")
        connection = http.client.HTTPConnection(urllib.parse.urlsplit(url).netloc, timeout=30)
        connection.request("GET", "/health")  # and kept open: an idle connection must not hold it up
        assert connection.getresponse().read() == b'{"status":"ok"}'
        os.kill(process.pid, number)
        out, err = process.communicate(timeout=30)
        connection.close()
    finally:
        process.kill()
    assert (process.returncode, out, err) == (0, "clean\n", "")


STREAM = """
import time
from servelib.engine.naive import NaiveEngine
from servelib.model.scripted import ScriptedModel
from servelib.server.run import serve
from servelib.server.settings import ServerSettings
engine = NaiveEngine(ScriptedModel(lambda state: time.sleep(0.05) or 97))  # a stream of 100 seconds
serve(engine, port=0, settings=ServerSettings(grace=1000.0), on_ready=lambda url: print(url, flush=True))
print("clean", flush=True)
"""


def test_a_second_signal_ends_the_wait_for_streams_in_flight():
    process = subprocess.Popen(
        [sys.executable, "-c", STREAM], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    try:
        url = process.stdout.readline().strip()
        connection = http.client.HTTPConnection(urllib.parse.urlsplit(url).netloc, timeout=30)
        body = json.dumps({**COMPLETION, "max_tokens": 2000, "stream": True})
        connection.request("POST", "/v1/completions", body, {"content-type": "application/json"})
        answer = connection.getresponse()
        assert answer.readline().startswith(b"data: ")
        process.send_signal(signal.SIGINT)
        assert eventually(lambda: status_of(url, "/ready") == 503)  # the first signal was heard
        assert status_of(url, "/health") == 200
        assert status_of(url, "/v1/completions", COMPLETION) == 503
        process.send_signal(signal.SIGINT)
        assert b"shutting down" in answer.read()
        connection.close()
        process.wait(30)
        assert (process.returncode, process.stdout.read(), process.stderr.read()) == (0, "clean\n", "")
    finally:
        process.kill()


GRACE = """
import sys, time
from servelib.engine.naive import NaiveEngine
from servelib.model.scripted import ScriptedModel
from servelib.server.run import serve
from servelib.server.settings import ServerSettings
engine = NaiveEngine(ScriptedModel(lambda state: time.sleep(0.02) or 97))
settings = ServerSettings(grace=float(sys.argv[1]))
serve(engine, port=0, settings=settings, on_ready=lambda url: print(url, flush=True))
print("clean", flush=True)
"""


@pytest.mark.parametrize(("grace", "tokens", "end"), [(60.0, 30, b"[DONE]"), (0.2, 2000, b"shutting down")])
def test_a_stream_in_flight_ends_within_the_grace_or_is_ended(grace, tokens, end):
    process = subprocess.Popen(
        [sys.executable, "-c", GRACE, str(grace)], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    try:
        url = process.stdout.readline().strip()
        with Raw(url) as client:
            client.post("/v1/completions", {**COMPLETION, "max_tokens": tokens, "stream": True})
            said = client.some()
            process.send_signal(signal.SIGTERM)
            said += client.rest()  # returns: the server closed the connection
        assert end in said
        assert (b"[DONE]" in said) == (end == b"[DONE]")
        assert (process.wait(30), process.stdout.read(), process.stderr.read()) == (0, "clean\n", "")
    finally:
        process.kill()


def status_of(url, path, body=None):
    connection = http.client.HTTPConnection(urllib.parse.urlsplit(url).netloc, timeout=30)
    method, data = ("GET", None) if body is None else ("POST", json.dumps(body))
    connection.request(method, path, data, {"content-type": "application/json", "connection": "close"})
    try:
        return connection.getresponse().status
    finally:
        connection.close()


NO_DESCRIPTORS = """
import os, resource, sys
from servelib.engine.naive import NaiveEngine
from servelib.model.scripted import ScriptedModel
from servelib.server.run import serve
from servelib.server.settings import ServerSettings

def use_up(url):
    resource.setrlimit(resource.RLIMIT_NOFILE, (64, resource.getrlimit(resource.RLIMIT_NOFILE)[1]))
    try:
        while True:
            os.dup(0)
    except OSError:
        print(url, flush=True)

serve(NaiveEngine(ScriptedModel([97])), port=0, on_ready=use_up)
"""


def test_a_server_without_descriptors_says_so_once():
    process = subprocess.Popen(
        [sys.executable, "-c", NO_DESCRIPTORS], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    try:
        url = process.stdout.readline().strip()
        host, port = urllib.parse.urlsplit(url).netloc.split(":")
        with socket.create_connection((host, int(port)), timeout=30):
            first = process.stderr.readline()
            process.send_signal(signal.SIGTERM)
            _, rest = process.communicate(timeout=30)
    finally:
        process.kill()
    assert "ulimit -n" in first
    assert (process.returncode, rest) == (0, "")
