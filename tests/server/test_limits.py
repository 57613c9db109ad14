"""Overload, and clients who send or read too much or too slowly: each is told, or dropped, alone."""

import asyncio
import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from raw import Raw, answer, head
from serving import COMPLETION, Gate, eventually, ids, serving

from servelib.clock import VirtualClock
from servelib.errors import InvalidRequestError
from servelib.request import FinishReason, Request, SampledToken, StepOutput
from servelib.server.ledger import Ledger, Outcome, QueueFullError
from servelib.server.mailbox import Mailbox
from servelib.server.metrics import Metrics
from servelib.server.patience import Patience
from servelib.server.settings import ServerSettings

STREAM = {**COMPLETION, "stream": True}
SHORT = 0.3  # seconds: every limit a test waits for


def error_of(raw):
    status, headers, body = answer(raw)
    error = json.loads(body)["error"]
    assert set(error) == {"message", "type", "param", "code"}
    return status, headers, error


# The queue


@settings(deadline=None, derandomize=True)
@given(
    st.integers(1, 6),
    st.lists(st.one_of(st.integers(1, 6), st.sampled_from(["token", "end", "leave"])), max_size=40),
)
def test_the_queue_takes_exactly_what_it_has_room_for_and_counts_everyone_once(room, events):
    """Against the simplest model of it: two lists."""
    metrics, clock = Metrics(), VirtualClock()
    waiting, running, started = [], [], 0

    async def scenario():
        nonlocal started
        ledger = Ledger(
            max_waiting=room, timeout=1e6, clock=clock, observer=metrics, on_timeout=lambda request_id: None
        )
        for number, event in enumerate(events):
            clock.advance(1.0)
            if isinstance(event, int):
                names = [f"{number}-{i}" for i in range(event)]
                requests = [Request(name, (1,)) for name in names]
                if event > room:
                    with pytest.raises(InvalidRequestError, match=f"at most {room}"):
                        ledger.admit(requests, Mailbox(event), None)
                    continue
                started += event
                if len(waiting) + event > room:
                    with pytest.raises(QueueFullError) as full:
                        ledger.admit(requests, Mailbox(event), None)
                    assert 1 <= full.value.retry_after <= 60
                else:
                    ledger.admit(requests, Mailbox(event), None)
                    waiting.extend(names)
            elif event == "token" and waiting:
                running.append(waiting.pop(0))
                ledger.deliver([StepOutput(running[-1], (SampledToken(1),))], 0.0, clock.now())
            elif event == "end" and running:
                ended = running.pop(0)
                ledger.deliver([StepOutput(ended, (), FinishReason.LENGTH)], 0.0, clock.now())
                assert not ledger.end(ended, Outcome.ABORT)  # only once
            elif event == "leave" and waiting:
                assert ledger.end(waiting.pop(), Outcome.ABORT)
            assert (ledger.waiting, ledger.running) == (len(waiting), len(running))
            read = metrics.registry.get_sample_value
            finished = sum(
                read("servelib_requests_finished_total", {"reason": outcome.value}) for outcome in Outcome
            )
            assert read("servelib_requests_started_total") == started
            assert started == finished + len(waiting) + len(running)

    asyncio.run(scenario())


@pytest.mark.parametrize("body", [COMPLETION, STREAM])
def test_of_32_at_once_exactly_as_many_wait_as_may_and_the_rest_is_told_to_come_back(body):
    gate = Gate()
    with serving(gate, max_waiting=8) as served:
        clients = [Raw(served.url).post("/v1/completions", body) for _ in range(32)]
        refused = 'servelib_requests_finished_total{reason="refused"}'
        assert eventually(lambda: served.metrics()[refused] == 24)
        assert served.metrics()["servelib_requests_waiting"] == 8
        gate.opened.set()
        statuses = []
        for client in clients:
            with client:
                raw = client.some()
                statuses.append(answer(raw)[0])
                if statuses[-1] == 429:
                    _, headers, error = error_of(raw if raw.endswith(b"}") else raw + client.some())
                    assert int(headers["retry-after"]) >= 1
                    assert (error["type"], error["code"]) == ("rate_limit_error", "rate_limit_exceeded")
        assert sorted(statuses) == [200] * 8 + [429] * 24
        assert eventually(lambda: served.metrics()["servelib_requests_waiting"] == 0)
        assert served.post("/v1/completions", COMPLETION)[0] == 200  # room again


def test_the_choices_of_a_call_are_taken_all_or_none():
    gate = Gate()
    with serving(gate, max_waiting=3) as served, Raw(served.url) as first, Raw(served.url) as second:
        first.post("/v1/completions", COMPLETION)
        assert gate.reached.wait(20)  # one place is taken
        assert served.post("/v1/completions", {**COMPLETION, "n": 3, "temperature": 1})[0] == 429
        status, refused = served.post("/v1/completions", {**COMPLETION, "n": 4, "temperature": 1})
        assert (status, refused["error"]["param"]) == (400, "n")  # it could never be served
        assert served.metrics()["servelib_requests_waiting"] == 1
        second.post("/v1/completions", {**COMPLETION, "n": 2, "temperature": 1})
        assert eventually(lambda: served.metrics()["servelib_requests_waiting"] == 3)
        gate.opened.set()
        assert answer(second.whole())[0] == 200


# Time for a request


def test_a_plain_request_that_takes_too_long_is_a_504_and_leaves_the_engine():
    gate = Gate(free=3)
    with serving(gate, request_timeout=3 * SHORT) as served:
        status, refused = served.post("/v1/completions", {**COMPLETION, "max_tokens": 1000})
        assert (status, refused["error"]["type"], refused["error"]["code"]) == (
            504,
            "server_error",
            "timeout",
        )
        gate.opened.set()
        assert eventually(lambda: not served.engine.has_work)
        assert len(served.engine.model.calls) == 4
        assert served.metrics()['servelib_requests_finished_total{reason="timeout"}'] == 1
        assert served.health() == 200


def test_a_stream_that_takes_too_long_ends_with_an_error_event_and_one_in_the_queue_with_a_504():
    gate = Gate(free=2)
    with serving(gate, request_timeout=3 * SHORT) as served, Raw(served.url) as queued:
        with Raw(served.url) as stream:
            stream.post("/v1/completions", {**STREAM, "max_tokens": 1000})
            assert gate.reached.wait(20)
            queued.post("/v1/completions", STREAM)
            events = b""
            while b'"error"' not in events:
                more = stream.some()
                assert more
                events += more
        assert answer(events)[0] == 200
        assert events.count(b'"finish_reason":null') == 2
        assert b'"code": "timeout"' in events
        assert b"[DONE]" not in events
        assert error_of(queued.whole())[0] == 504
        gate.opened.set()
        assert eventually(lambda: not served.engine.has_work)
        assert len(served.engine.model.calls) == 3


# What is sent


def test_a_body_over_the_limit_is_a_413_before_any_of_it_is_sent():
    with serving(ids("a"), max_body=1000) as served, Raw(served.url) as client:
        client.send(head("/v1/completions", "content-length: 1001"))
        assert error_of(client.whole())[0] == 413
        assert served.post("/v1/completions", {**COMPLETION, "stop": ["x" * 900]})[0] == 200
        assert served.post("/v1/completions", {**COMPLETION, "stop": ["x" * 1000]})[0] == 413


def test_a_body_in_chunks_is_a_413_as_soon_as_it_is_over_the_limit():
    with serving(ids("a"), max_body=1000) as served, Raw(served.url) as client:
        client.send(head("/v1/completions", "transfer-encoding: chunked"))
        for _ in range(2):
            client.send(b"1f4\r\n" + b" " * 500 + b"\r\n")
        client.send(b"1\r\n \r\n")  # and no end of it in sight
        assert error_of(client.whole())[0] == 413
        assert served.health() == 200


def test_a_body_of_exactly_the_limit_is_served():
    body = json.dumps(COMPLETION).encode()
    with serving(ids("a"), max_body=len(body)) as served:
        assert served.post("/v1/completions", body)[0] == 200
        assert served.post("/v1/completions", body + b" ")[0] == 413


def test_a_body_larger_than_a_head_may_be_is_no_head():
    body = {**COMPLETION, "stop": ["x" * 1_000_000]}
    with serving(ids("a"), max_head=1000) as served, Raw(served.url) as client:
        for _ in range(2):  # on one connection
            assert answer(client.post("/v1/completions", body).whole())[0] == 200


@pytest.mark.parametrize(
    "data",
    [
        head("/v1/completions", *(f"x-{i}: 1" for i in range(200))),
        head("/v1/completions", f"x: {'a' * 20_000}"),
        head("/v1/completions/" + "a" * 20_000),
        head("/v1/completions")[:-4] + b"\r\nx: " + b"a" * 20_000,  # and the end never comes
        b"GET /" + b"a" * 20_000,
    ],
    ids=["many", "long", "long path", "endless", "endless path"],
)
def test_a_head_over_the_limit_is_a_431(data):
    with serving(ids("a"), max_head=10_000) as served, Raw(served.url) as client:
        client.send(data)
        status, _, error = error_of(client.rest())
        assert status == 431
        assert error["type"] == "invalid_request_error"
        assert served.health() == 200


def test_what_is_no_http_is_refused_in_the_shape_of_every_error(hello):
    with Raw(hello.url) as client:
        assert error_of(client.send(b"hello\r\n\r\n").rest())[0] == 400
    with Raw(hello.url) as client:  # a broken chunk behind a good head
        client.send(head("/v1/completions", "transfer-encoding: chunked") + b"zz\r\n")
        assert error_of(client.rest())[0] == 400
    assert hello.health() == 200


@pytest.mark.parametrize(
    ("data", "status"),
    [
        (b"", None),
        (b"POST /v1/comp", 408),
        (head("/v1/completions")[:-2], 408),
        (head("/v1/completions", "content-length: 9"), 408),
        (head("/v1/completions", "content-length: 9") + b'{"a"', 408),
        (head("/v1/completions", "transfer-encoding: chunked") + b"1\r\n{\r\n", 408),
    ],
)
def test_a_sender_who_falls_silent_is_dropped(data, status):
    with serving(ids("a"), head_timeout=SHORT, body_timeout=SHORT) as served, Raw(served.url) as client:
        raw = client.send(data).rest()  # returns: the server left
        assert (error_of(raw)[0] if raw else None) == status
        assert not served.engine.has_work
        assert served.health() == 200


@pytest.mark.parametrize("extra", [b"", b"\r\n", b"GET"])
def test_a_connection_that_idles_between_requests_is_closed(extra):
    with serving(ids("a"), keep_alive=SHORT, head_timeout=SHORT) as served, Raw(served.url) as client:
        client.send(b"GET /health HTTP/1.1\r\nhost: x\r\n\r\n")
        assert answer(client.whole())[0] == 200
        client.send(extra)
        left = client.rest()
        assert left == b"" or error_of(left)[0] == 408


def test_a_slow_sender_who_was_refused_already_is_dropped_too():
    with serving(ids("a"), max_body=10, body_timeout=SHORT) as served, Raw(served.url) as client:
        client.send(head("/v1/completions", "content-length: 99") + b"x")
        client.rest()


def test_a_caller_whose_answer_takes_long_is_not_taken_for_a_slow_sender():
    gate = Gate()
    limits = dict.fromkeys(["head_timeout", "body_timeout", "keep_alive"], SHORT / 4)
    with serving(gate, **limits) as served, Raw(served.url) as client, Raw(served.url) as silent:
        client.post("/v1/completions", COMPLETION)
        assert gate.reached.wait(20)
        assert silent.rest() == b""  # the time is over
        gate.opened.set()
        assert answer(client.whole())[0] == 200


# What is taken


def test_a_reader_who_takes_nothing_holds_little_slows_nobody_and_is_dropped():
    gate = Gate(free=1800)
    limits = {"write_timeout": 1000.0, "send_buffer": 8192}
    with serving(gate, **limits) as served, Raw(served.url, receive_buffer=2048) as reader:
        reader.post("/v1/completions", {**STREAM, "max_tokens": 2000, "logprobs": 1})
        assert gate.reached.wait(20)
        connections = served.server._server.server_state.connections
        assert eventually(lambda: any(connection.flow.write_paused for connection in connections))
        biggest_send = 256 * 400  # outputs in one go, bytes an event
        assert all(connection.transport.get_write_buffer_size() < biggest_send for connection in connections)
        [paused] = [connection for connection in connections if connection.flow.write_paused]
        timer = paused._patience._timer
        assert 900 < timer.when() - paused.loop.time() <= 1000
        paused.loop.call_soon_threadsafe(paused._patience._look)  # the 1000 seconds are over
        lost = 'servelib_requests_finished_total{reason="abort"}'
        assert eventually(lambda: served.metrics()[lost] == 1)  # while the model is still in its step
        gate.opened.set()
        assert eventually(lambda: not served.engine.has_work)
        assert len(served.engine.model.calls) == 1801
        assert served.post("/v1/completions", COMPLETION)[0] == 200


def test_a_reader_far_behind_gets_everything_and_holds_up_nobody():
    text = "".join(chr(ord("a") + i % 26) for i in range(1500))
    with serving(ids(text), send_buffer=8192) as served, Raw(served.url, receive_buffer=2048) as reader:
        reader.post("/v1/completions", {**STREAM, "max_tokens": 2000, "logprobs": 1})
        assert served.post("/v1/completions", COMPLETION)[0] == 200  # not held up
        raw = b""
        while b"[DONE]" not in raw:
            more = reader.socket.recv(700)
            assert more
            raw += more
        events = [line[6:] for line in raw.decode().split("\n") if line.startswith("data: {")]
        assert "".join(json.loads(event)["choices"][0]["text"] for event in events) == text


def test_a_slow_reader_is_dropped_when_it_takes_nothing_or_when_the_requests_time_is_over():
    class Timers:
        now, due = 0.0, None

        def time(self):
            return self.now

        def call_later(self, seconds, callback):
            assert seconds == 7.0
            self.due = callback
            return asyncio.TimerHandle(0.0, callback, (), loop)

    class Transport:
        unsent, aborted = 100, False

        def get_write_buffer_size(self):
            return self.unsent

        def abort(self):
            self.aborted = True

    loop = asyncio.new_event_loop()
    for seen in [[(99, 7, False), (98, 14, False), (98, 21, True)], [(99, 7, False), (1, 50, True)]]:
        timers, transport = Timers(), Transport()
        patience = Patience(transport, timers, 7.0)
        patience.until = 50.0
        patience.begin()
        for transport.unsent, timers.now, dropped in seen:
            timers.due()
            assert transport.aborted == dropped
    loop.close()


def test_a_client_that_shuts_its_sending_side_has_hung_up():
    gate = Gate(free=2)
    with serving(gate) as served, Raw(served.url) as client:
        client.post("/v1/completions", {**STREAM, "max_tokens": 1000})
        assert gate.reached.wait(20)
        client.socket.shutdown(1)
        lost = 'servelib_requests_finished_total{reason="abort"}'
        assert eventually(lambda: served.metrics()[lost] == 1)
        gate.opened.set()
        assert eventually(lambda: not served.engine.has_work)
        assert len(served.engine.model.calls) == 3


@pytest.mark.parametrize(
    "wrong",
    [
        {"max_waiting": 0},
        {"request_timeout": 0.0},
        {"write_timeout": float("nan")},
        {"grace": -1.0},
        {"max_body": 1.5},
        {"api_key": ""},
        {"api_key": "é"},
        {"api_key": "a\nb"},
        {"allow_origins": ("example.org",)},
        {"allow_origins": ("http://localhost:3000/",)},
        {"allow_origins": ("https://Example.org",)},
        {"api_key": " k"},
    ],
    ids=str,
)
def test_settings_out_of_range_are_named(wrong):
    [name] = wrong
    with pytest.raises(InvalidRequestError) as refused:
        ServerSettings(**wrong)
    assert refused.value.field == name
    assert "secret" not in repr(ServerSettings(api_key="secret"))
