"""Clients that are rare and right, or wrong in a way that costs them no answer; and those who are many."""

import json
import signal
import threading

import pytest
from lockstep import Lockstep
from raw import Raw, answer, head
from serving import COMPLETION, TEXT, Gate, Served, eventually, ids, serving

from servelib.server.lifecycle import Server
from servelib.server.run import BackgroundServer
from servelib.server.settings import ServerSettings
from servelib.text.tokenizer import Tokenizer

BODY = json.dumps(COMPLETION).encode()
ASK = head("/v1/completions", f"content-length: {len(BODY)}") + BODY
HEALTH = b"GET /health HTTP/1.1\r\nhost: x\r\n\r\n"
LAST = b"GET /health HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n"


def statuses(raw):
    """Of all the answers on a connection; no text of ours holds such a line."""
    return [int(line.split()[1]) for line in raw.decode().replace("}HTTP", "}\nHTTP").split("\n")
            if line.startswith("HTTP/1.1 ")]  # fmt: skip


def large(size):
    body = json.dumps({**COMPLETION, "stop": ["x" * size]}).encode()
    return head("/v1/completions", f"content-length: {len(body)}") + body


@pytest.mark.parametrize("cut", [1, 40, len(ASK) - 1])
def test_a_head_that_comes_behind_a_large_body_is_not_as_large_as_the_body(hello, cut):
    with Raw(hello.url) as client:
        client.send(large(200_000) + ASK[:cut])
        raw = client.whole()
        client.send(ASK[cut:] + LAST)
        assert statuses(raw + client.rest()) == [200, 200, 200]


def test_many_requests_sent_ahead_are_all_answered_in_order(hello):
    with Raw(hello.url) as client:
        client.send(HEALTH * 1000 + b"GET /no HTTP/1.1\r\n\r\n" + LAST[:9])
        client.send(LAST[9:])
        assert statuses(client.rest()) == [200] * 1000 + [404, 200]


@pytest.mark.parametrize("behind", [b"garbage\r\n\r\n", b"}", HEALTH + b"POST nonsense", b"\0"])
def test_what_cannot_be_read_behind_a_request_does_not_cost_it_its_answer(hello, behind):
    """Whoever counts characters where the length wants bytes sends such a thing."""
    with Raw(hello.url) as client:
        raw = client.send(ASK + behind + b"\r\n\r\n").rest()
        assert statuses(raw)[: 1 + behind.count(HEALTH)] == [200] * (1 + behind.count(HEALTH))
        assert raw.count(b'"text":') == 1


@pytest.mark.parametrize(("path", "key", "status"), [("/nope", "k", 404), ("/ready", "x", 401)])
@pytest.mark.parametrize("size", [3_000_000, 6_000_000])
def test_who_is_refused_while_still_sending_can_read_why(path, key, status, size):
    with serving(ids("a"), api_key="k") as served:
        for _ in range(3):
            got, raw = served.fetch(path, b"x" * size, authorization=f"Bearer {key}")
            assert got == (413 if size > 4_194_304 and key == "k" else status)
            assert json.loads(raw)["error"]["message"]


def test_who_waits_to_be_told_to_send_and_is_refused_starts_over_on_another_connection(hello):
    with Raw(hello.url) as client:
        client.send(head("/nope", "content-length: 9", "expect: 100-continue") + HEALTH)
        status, headers, _ = answer(client.rest())
        assert (status, headers["connection"]) == (404, "close")
    with Raw(hello.url) as client:
        client.send(head("/v1/completions", f"content-length: {len(BODY)}", "expect: 100-continue"))
        assert client.some() == b"HTTP/1.1 100 Continue\r\n\r\n"
        assert answer(client.send(BODY).whole())[0] == 200


@pytest.mark.parametrize("protocol", ["h2c", "websocket", "TLS/1.0"])
def test_an_offer_of_another_protocol_is_not_taken_up_and_the_request_is_served(hello, protocol):
    """Java's own client makes one with its first request, the body right behind it."""
    offer = ("connection: Upgrade, HTTP2-Settings", f"upgrade: {protocol}", "http2-settings: AAE")
    asked = head("/v1/completions", f"content-length: {len(BODY)}", *offer)
    for sent in ([asked + BODY + LAST], [asked, BODY + LAST], [asked + BODY[:5], BODY[5:], LAST]):
        with Raw(hello.url) as client:
            for part in sent:
                client.send(part)
            assert statuses(client.rest()) == [200, 200]


def test_a_tunnel_is_refused_and_ends_there(hello):
    with Raw(hello.url) as client:
        assert statuses(client.send(b"CONNECT x:443 HTTP/1.1\r\nhost: x\r\n\r\n" + HEALTH).rest()) == [400]


def test_a_client_of_the_old_protocol_gets_a_stream_in_one_piece_without_chunks(hello):
    body = json.dumps({**COMPLETION, "max_tokens": 200, "stream": True}).encode()
    asked = head("/v1/completions", f"content-length: {len(body)}").replace(b"HTTP/1.1", b"HTTP/1.0") + body
    with Raw(hello.url) as client:
        status, headers, events = answer(client.send(asked).rest())
    assert (status, headers["content-type"]) == (200, "text/event-stream; charset=utf-8")
    assert "transfer-encoding" not in headers
    assert int(headers["content-length"]) == len(events)
    lines = events.decode().split("\n\n")
    assert "".join(json.loads(line[6:])["choices"][0]["text"] for line in lines[:-2]) == TEXT
    assert lines[-2:] == ["data: [DONE]", ""]


@pytest.mark.parametrize("ahead", [1, 3])
def test_a_caller_who_leaves_behind_requests_sent_ahead_ends_them_all(ahead):
    gate = Gate(free=1)
    with serving(gate) as served:
        with Raw(served.url) as client:
            client.send(ASK)
            assert gate.reached.wait(20)
            client.send(ASK * ahead)
            [connection] = served.server._server.server_state.connections
            assert eventually(lambda: len(connection.pipeline) == ahead)
        lost = 'servelib_requests_finished_total{reason="abort"}'
        assert eventually(lambda: served.metrics()[lost] == 1)  # while the model is inside its step
        gate.opened.set()
        assert eventually(lambda: not served.engine.has_work)
        assert len(served.engine.model.calls) == 2
        assert served.metrics()["servelib_requests_started_total"] == 1


def test_a_slash_too_many_leads_nowhere(hello):
    for path in ("/health/", "/v1/completions/", "//health"):
        assert hello.fetch(path)[0] == 404


@pytest.mark.parametrize("body", [{"z" * 100_000: 1}, {"z" * 100_000: {"z" * 100_000: 1}}])
def test_a_long_name_is_not_sent_back_whole(hello, body):
    twice = json.dumps(body)[:-1] + "," + json.dumps(body)[1:]
    for raw in (json.dumps(body), twice):
        status, answered = hello.post("/tokenize", raw.encode())
        assert status == 400
        assert "zzz..." in answered["error"]["param"]
        assert len(json.dumps(answered)) < 500


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/v1/completions", {**COMPLETION, "prompt": "a" * 1_000_000}),
        ("/v1/completions", {**COMPLETION, "prompt": ["a" * 9_000] * 4}),
        (
            "/v1/chat/completions",
            {"model": "scripted", "messages": [{"role": "user", "content": "a" * 99_999}]},
        ),
        ("/tokenize", {"prompt": "a" * 1_000_000}),
    ],
)
def test_nobody_waits_while_a_long_text_is_cut_into_tokens(path, body):
    class Slow(Tokenizer):
        begun, go_on = threading.Event(), threading.Event()

        def encode(self, text, *, field="prompt"):
            self.begun.set()
            assert self.go_on.wait(20)
            return super().encode(text, field=field)

    engine, tokenizer = Lockstep(lambda state: 97), Slow()
    with BackgroundServer(engine, model_id="scripted", tokenizer=tokenizer) as server:
        served = Served(server, engine, server.spans)
        with Raw(server.url) as client:
            client.post(path, body)
            assert tokenizer.begun.wait(20)
            assert served.health() == 200
            tokenizer.go_on.set()
            assert answer(client.whole())[0] == (200 if path == "/tokenize" else 400)
        served.client.close()


# How it ends


def test_a_second_signal_does_not_wait_for_a_lock_that_its_own_thread_holds():
    with BackgroundServer(Lockstep(lambda state: 97)) as server:
        loop = server.app.state.service.loop
        with loop._turns._cond:  # a signal comes between any two instructions, such as those in here
            signals = threading.Thread(
                target=lambda: [server._server.handle_exit(signal.SIGINT, None) for _ in range(2)]
            )
            signals.start()
            signals.join(20)
            assert not signals.is_alive()


def test_a_start_that_is_interrupted_leaves_no_server(monkeypatch):
    before = set(threading.enumerate())
    server = BackgroundServer(Lockstep(lambda state: 97), settings=ServerSettings())
    monkeypatch.setattr(server._ready, "wait", lambda: (_ for _ in ()).throw(KeyboardInterrupt))
    with pytest.raises(KeyboardInterrupt), server:
        pass
    assert eventually(lambda: set(threading.enumerate()) == before)
    assert isinstance(server._server, Server)
