"""The HTTP driver against servers that behave, and against servers that do not. Proof 9 of the harness."""

from __future__ import annotations

import asyncio
import errno
import json
import re
import signal
import socket
import ssl
import struct
import threading
from pathlib import Path
from statistics import fmean

import aiohttp
import pytest
from raw_server import CHUNKED, DONE, HEAD, at_once, event, framed, raw_server, usage

from servelib.clock import VirtualClock, WallClock
from servelib.engine.naive import NaiveEngine
from servelib.errors import InvalidRequestError
from servelib.harness.drive import RunError, drive
from servelib.harness.http import drive_http
from servelib.harness.metrics import e2e, ttft
from servelib.harness.probe import TargetError, probe
from servelib.harness.records import Outcome
from servelib.harness.target import Target
from servelib.harness.trace import Trace, TraceRequest, Uniform, Workload
from servelib.harness.transport import transport
from servelib.model.scripted import ScriptedModel
from servelib.server.run import BackgroundServer
from servelib.text.tokenizer import load_tokenizer

THREE = event("a") + event("b") + event("c") + usage(3)
WHOLE = CHUNKED + framed(THREE + DONE) + b"0\r\n\r\n"


def one(handler, **target):
    """The record of one request of three tokens."""
    with raw_server(handler) as raw:
        (record,) = drive_http(Target(raw.url, "m", **target), at_once(1)).requests
    return record


def says(raw: bytes):
    async def answer(number, writer):
        writer.write(raw)

    return answer


def reset(writer) -> None:
    """Close with RST, as a crashed process or a cut line does."""
    writer.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    writer.transport.abort()


@pytest.fixture(scope="module")
def served():
    with BackgroundServer(NaiveEngine(ScriptedModel([97]), use_cache=True)) as server:
        yield server


WORKLOAD = Workload(Uniform(4, 9), Uniform(3, 6), requests=12)


@pytest.mark.parametrize("endpoint", ["completions", "chat"])
def test_proof_9_in_process_and_over_http_the_same_tokens(served, endpoint):
    """The same trace both ways: equal token counts; what HTTP adds to a latency is its transport time."""
    trace = WORKLOAD.trace(400.0)
    inside = drive(NaiveEngine(ScriptedModel([97]), use_cache=True), trace, WallClock())
    outside = drive_http(Target(served.url, served.model_id, endpoint), trace)
    assert [r.outcome for r in outside.requests] == [Outcome.OK] * 12
    assert [r.output_tokens for r in outside.requests] == [r.output_tokens for r in inside.requests]
    assert [r.scheduled for r in outside.requests] == [r.scheduled for r in inside.requests]
    assert outside.trace_hash == inside.trace_hash
    assert {(r.tokens_from, r.tokens_note) for r in outside.requests} == {("usage", None)}
    added = 0 if endpoint == "completions" else 20  # the chat template's own
    assert [r.prompt_tokens - added for r in outside.requests] == [r.prompt_tokens for r in inside.requests]
    for record in outside.requests:
        times = [time for time, _ in record.events]
        assert record.scheduled <= record.sent <= times[0]
        assert times == sorted(times)
        assert times[-1] <= record.end


def test_proof_9_the_latency_difference_is_the_reported_transport_time(served):
    trace = WORKLOAD.trace(400.0)
    inside = drive(NaiveEngine(ScriptedModel([97]), use_cache=True), trace, WallClock())
    outside = drive_http(Target(served.url, served.model_id), trace)
    found = transport(inside, outside)
    pairs = list(zip(inside.requests, outside.requests, strict=True))
    assert found.ttfts == pytest.approx([ttft(b) - ttft(a) for a, b in pairs])
    assert found.e2es == pytest.approx([e2e(b) - e2e(a) for a, b in pairs])
    assert found.ttft.value == pytest.approx(fmean(found.ttfts))
    assert found.ttft.low < found.ttft.value < found.ttft.high


def test_transport_compares_only_what_can_be_compared(served):
    trace = WORKLOAD.trace(400.0)
    inside = drive(NaiveEngine(ScriptedModel([97])), trace, WallClock())
    with pytest.raises(InvalidRequestError, match="trace"):
        transport(inside, drive(NaiveEngine(ScriptedModel([97])), WORKLOAD.trace(400.0, 1), WallClock()))
    other = drive(NaiveEngine(ScriptedModel([97])), trace, WallClock())
    other.requests[3].events.pop()
    with pytest.raises(InvalidRequestError, match="output_tokens"):
        transport(inside, other)
    for record in other.requests:
        record.outcome = Outcome.TIMED_OUT
    assert transport(inside, other).ttft.value is None


def test_what_is_asked(monkeypatch):
    monkeypatch.setenv("SOME_KEY", " secret \n")
    with raw_server(says(WHOLE)) as raw:
        target = Target(raw.url, "m", api_key_env="SOME_KEY", extra_body={"top_k": 1, "temperature": None})
        assert drive_http(target, at_once(1)).requests[0].ok
        drive_http(Target(raw.url + "/v1/", "m", "chat", exact_length=False, usage=False), at_once(1))
        drive_http(Target(raw.url + "/proxy/v1", "m", prompt_ids=False), at_once(1))
    assert raw.bodies[0] == {
        "model": "m",
        "prompt": [65, 66, 67, 68],
        "max_tokens": 3,
        "stream": True,
        "ignore_eos": True,
        "min_tokens": 3,
        "stream_options": {"include_usage": True},
        "top_k": 1,
    }
    assert "POST /v1/completions " in raw.heads[0]
    assert "Authorization: Bearer secret\r\n" in raw.heads[0]
    assert raw.bodies[1]["messages"] == [{"role": "user", "content": "ABCD"}]
    assert not {"stream_options", "ignore_eos", "min_tokens"} & set(raw.bodies[1])
    assert "POST /v1/chat/completions " in raw.heads[1]
    assert "Authorization" not in raw.heads[1]
    assert raw.bodies[2]["prompt"] == "ABCD"
    assert "POST /proxy/v1/completions " in raw.heads[2]


async def fails_429(number, writer):
    body = b'{"error": {"message": "queue is full"}}'
    writer.write(b"HTTP/1.1 429 Slow\r\ncontent-length: %d\r\n\r\n%s" % (len(body), body))


async def breaks_off(number, writer):
    writer.write(CHUNKED + framed(event("a")))
    await writer.drain()
    reset(writer)


async def hangs_up(number, writer):
    reset(writer)


async def ends_early(number, writer):
    writer.write(CHUNKED + framed(event("a"), event("b")) + b"0\r\n\r\n")


async def cut_in_a_chunk(number, writer):
    writer.write(CHUNKED + framed(event("a")) + b"ff\r\ndata: half")


def bad(status: bytes, body: bytes = b"oops"):
    return says(b"HTTP/1.1 %s\r\ncontent-length: %d\r\n\r\n%s" % (status, len(body), body))


@pytest.mark.parametrize(
    ("handler", "outcome", "said", "tokens"),
    [
        (fails_429, Outcome.REFUSED, "HTTP 429: queue is full", 0),
        (bad(b"400 Bad Request"), Outcome.REFUSED, "HTTP 400: oops", 0),
        (bad(b"500 Internal Server Error", b""), Outcome.HTTP_ERROR, "HTTP 500: Internal Server Error", 0),
        (bad(b"302 Found\r\nlocation: /x"), Outcome.HTTP_ERROR, "HTTP 302: oops", 0),
        (bad(b"200 OK\r\ncontent-type: text/html"), Outcome.STREAM_ERROR, "text/html", 0),
        (says(b"this is not HTTP\r\n\r\n"), Outcome.HTTP_ERROR, "no answer", 0),
        (hangs_up, Outcome.HTTP_ERROR, "no answer", 0),
        (breaks_off, Outcome.TRUNCATED, "broke off", 1),
        (cut_in_a_chunk, Outcome.TRUNCATED, "broke off", 1),
        (ends_early, Outcome.TRUNCATED, "without its end", 2),
        (
            says(HEAD + b"\r\n" + event("a") + b'data: {"error": {"message": "out of memory"}}\n\n' + DONE),
            Outcome.STREAM_ERROR,
            "out of memory",
            1,
        ),
        (says(HEAD + b"\r\n" + event("a") + b"data: {nonsense\n\n"), Outcome.STREAM_ERROR, "not JSON", 1),
        (says(HEAD + b"\r\n" + event("a") + usage(1) + DONE), Outcome.SHORT, "1 of 3 tokens", 1),
        (says(HEAD + b"\r\n" + DONE), Outcome.SHORT, "0 of 3 tokens", 0),
        (says(HEAD + b"\r\n" + THREE + DONE), Outcome.OK, None, 3),
        (says(HEAD + b"\r\n" + THREE + b"data: [DONE]"), Outcome.OK, None, 3),
        (says(HEAD + b"\r\n" + event("abc", finish="length") + usage(3)), Outcome.OK, None, 3),
        (says(HEAD + b"content-length: %d\r\n\r\n" % len(THREE + DONE) + THREE + DONE), Outcome.OK, None, 3),
    ],
)
def test_every_way_to_end_has_its_name(handler, outcome, said, tokens):
    record = one(handler)
    assert (record.outcome, record.output_tokens) == (outcome, tokens)
    assert record.error is None if said is None else said in record.error
    assert "\n" not in (record.error or "")
    assert record.end is not None


def test_bytes_of_a_character_in_two_chunks_and_chunks_that_cut_lines():
    stream = event("é\u2028👩") + THREE[len(event("a")) :] + DONE

    async def answer(number, writer):
        writer.write(CHUNKED)
        for i in range(len(stream)):
            writer.write(framed(stream[i : i + 1]))
        writer.write(b"0\r\n\r\n")

    record = one(answer)
    assert (record.outcome, record.output_tokens, record.tokens_note) == (Outcome.OK, 3, None)


def test_a_huge_chunk():
    record = one(says(CHUNKED + framed(event("x" * 3_000_000) + usage(3) + DONE) + b"0\r\n\r\n"))
    assert (record.outcome, record.output_tokens) == (Outcome.OK, 3)


def test_the_end_mark_ends_it_even_if_the_connection_stays_open():
    ended = threading.Event()

    async def answer(number, writer):
        writer.write(WHOLE[: -len(b"0\r\n\r\n")])
        await writer.drain()
        await asyncio.to_thread(ended.wait, 20)

    with raw_server(answer) as raw:
        (record,) = drive_http(Target(raw.url, "m"), at_once(1)).requests
        ended.set()
    assert record.ok


@pytest.mark.parametrize(
    ("limits", "said"),
    [({"idle_timeout": 0.2}, "no bytes for 0.2 s"), ({"timeout": 0.2}, "not done after 0.2 s")],
)
def test_time_outs(limits, said):
    ended = threading.Event()

    async def answer(number, writer):
        writer.write(CHUNKED + framed(event("a")))
        await writer.drain()
        await asyncio.to_thread(ended.wait, 20)

    with raw_server(answer) as raw:
        (record,) = drive_http(Target(raw.url, "m", **limits), at_once(1)).requests
        ended.set()
    assert (record.outcome, record.error) == (Outcome.TIMED_OUT, said)


def test_a_refused_connection_is_refused():
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
    (record,) = drive_http(Target(f"http://127.0.0.1:{port}", "m"), at_once(1)).requests
    assert (record.outcome, record.error) == (Outcome.REFUSED, "cannot connect: connection refused")


def test_no_file_descriptors_left_is_the_harness_s_failure(monkeypatch):
    """Nothing is opened here: the client says at once what a process at its limit hears."""

    def none_left(*arguments, **options):
        raise aiohttp.ClientConnectorError(None, OSError(errno.EMFILE, "Too many open files"))

    monkeypatch.setattr(aiohttp.ClientSession, "post", none_left)
    run = drive_http(Target("http://127.0.0.1:1", "m"), at_once(3))
    assert [r.outcome for r in run.requests] == [Outcome.ABORTED] * 3
    assert "ulimit -n" in run.requests[0].error
    assert any(reason.startswith("3 requests not sent") for reason in run.self_check.reasons)


def test_every_request_is_in_flight_together_whatever_became_of_the_others():
    """150 requests, more than any default limit on connections, and none is answered before all are there."""
    all_here, waiting = asyncio.Event(), []

    async def answer(number, writer):
        waiting.append(number)
        if len(waiting) == 150:
            all_here.set()
        await all_here.wait()
        writer.write(fail if number % 3 == 0 else WHOLE)

    fail = b"HTTP/1.1 503 Busy\r\ncontent-length: 0\r\n\r\n"
    with raw_server(answer) as raw:
        run = drive_http(Target(raw.url, "m", timeout=60), at_once(150))
    assert sum(r.ok for r in run.requests) == 100
    assert sum(r.outcome is Outcome.HTTP_ERROR for r in run.requests) == 50


def test_a_closed_loop_has_as_many_in_flight_as_callers():
    now, most = [0], [0]

    async def answer(number, writer):
        now[0] += 1
        most[0] = max(most[0], now[0])
        await asyncio.sleep(0)
        now[0] -= 1
        writer.write(WHOLE)

    with raw_server(answer) as raw:
        run = drive_http(Target(raw.url, "m"), at_once(20), callers=3)
    assert all(r.ok for r in run.requests)
    assert most[0] <= 3
    assert all(r.scheduled <= r.sent for r in run.requests)


def test_a_stop_keeps_every_record():
    reached, never = threading.Event(), threading.Event()

    async def answer(number, writer):
        if number == 0:
            writer.write(WHOLE)
            return
        writer.write(CHUNKED + framed(event("a")))
        await writer.drain()
        reached.set()
        await asyncio.to_thread(never.wait, 20)

    wanted = at_once(2).requests
    later = TraceRequest("later", 3600.0, (65,), 3)
    with raw_server(answer) as raw:
        run = drive_http(
            Target(raw.url, "m"),
            Trace((*wanted, later), "given", "4", "3", seed=0),
            should_stop=lambda: reached.is_set() and len(raw.bodies) == 2,
        )
        never.set()
    assert run.interrupted
    assert sorted(r.outcome.value for r in run.requests) == ["aborted", "aborted", "ok"]
    assert run.requests[2].sent is None


@pytest.fixture
def ctrl_c_heard():
    """Python's own handler, even where a shell started the tests deaf to Ctrl-C: with ``&``, say."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


@pytest.mark.usefixtures("ctrl_c_heard")
def test_ctrl_c_keeps_every_record():
    never, pressed = threading.Event(), []

    async def answer(number, writer):
        writer.write(CHUNKED + framed(event("a")))
        await writer.drain()
        await asyncio.to_thread(never.wait, 20)

    def press() -> bool:
        if raw.bodies and not pressed:
            pressed.append(True)
            signal.raise_signal(signal.SIGINT)
        return False

    with raw_server(answer) as raw:
        run = drive_http(Target(raw.url, "m"), at_once(1), should_stop=press)
        never.set()
    assert run.interrupted
    assert run.requests[0].outcome is Outcome.ABORTED


def test_inside_a_running_event_loop():
    """As in a notebook."""

    async def cell():
        with raw_server(says(WHOLE)) as raw:
            return drive_http(Target(raw.url, "m"), at_once(2))

    assert all(r.ok for r in asyncio.run(cell()).requests)


def test_a_driver_that_breaks_loses_nothing():
    def progress(done, total):
        if done == 2:
            raise OSError("the terminal is gone")

    with raw_server(says(WHOLE)) as raw, pytest.raises(RunError, match="the terminal is gone") as caught:
        drive_http(Target(raw.url, "m"), at_once(5), on_progress=progress)
    assert sum(r.ok for r in caught.value.record.requests) >= 2


@pytest.mark.parametrize(
    ("change", "field"),
    [
        ({"url": "localhost:8000"}, "url"),
        ({"url": "ftp://x"}, "url"),
        ({"url": "http://x:99999"}, "url"),
        ({"url": "http://["}, "url"),
        ({"model": ""}, "model"),
        ({"endpoint": "embeddings"}, "endpoint"),
        ({"timeout": 0.0}, "timeout"),
        ({"idle_timeout": float("nan")}, "idle_timeout"),
    ],
)
def test_a_target_is_checked(change, field):
    with pytest.raises(InvalidRequestError) as caught:
        Target(**{"url": "http://x", "model": "m", **change})
    assert caught.value.field == field


def test_what_cannot_be_sent_is_found_before_anything_is(monkeypatch):
    monkeypatch.delenv("NO_KEY", raising=False)
    target, odd = Target("http://x", "m", prompt_ids=False), TraceRequest("r", 0.0, (200,), 1)
    trace = Trace((odd,), "given", "1", "1", seed=0)
    for arguments, field in (
        ((Target("http://x", "m", api_key_env="NO_KEY"), at_once(1)), "api_key_env"),
        ((target, trace), "prompt"),
        ((target, at_once(1), VirtualClock()), "clock"),
    ):
        with pytest.raises(InvalidRequestError) as caught:
            drive_http(*arguments)
        assert caught.value.field == field
    assert json.loads(target.body(odd, load_tokenizer()))["prompt"] == "\ufffd"


def test_the_probe_gives_up_what_a_server_refuses(served):
    wanted = at_once(1).requests[0]
    target = Target(served.url, served.model_id)
    assert probe(target, wanted) == target

    async def plain(number, writer):
        body = raw.bodies[number]
        if isinstance(body["prompt"], list) or "ignore_eos" in body or "stream_options" in body:
            await bad(b"400 Bad Request")(number, writer)
        else:
            writer.write(HEAD + b"\r\n" + event("a", finish="length"))

    with raw_server(plain) as raw:
        found = probe(Target(raw.url, "m"), wanted)
        assert len(raw.bodies) == 5
    assert (found.prompt_ids, found.exact_length, found.usage) == (False, False, False)


def test_the_probe_says_what_is_wrong_in_one_line(served):
    wanted = at_once(1).requests[0]
    with socket.create_server(("127.0.0.1", 0)) as taken:
        closed = f"http://127.0.0.1:{taken.getsockname()[1]}"
    with raw_server(bad(b"401 Unauthorized", b"")) as raw:
        for target, said in (
            (Target(closed, "m"), "connection refused"),
            (Target(served.url, "nope"), "must be 'scripted'"),
            (Target(served.url + "/v2", "m"), "--endpoint"),
            (Target(served.url.replace("http:", "https:"), "m"), "TLS failed"),
            (Target(raw.url, "m"), "--api-key-env"),
        ):
            with pytest.raises(TargetError) as caught:
                probe(target, wanted)
            assert said in str(caught.value)
            assert str(caught.value).startswith(target.address)
            assert "\n" not in str(caught.value)


def test_a_certificate_that_signed_itself_is_a_tls_failure():
    """A real handshake, ended by us: nothing is asked of a server that cannot show who it is."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(Path(__file__).parent / "data" / "self_signed.pem")
    with raw_server(says(WHOLE), context) as raw:
        (record,) = drive_http(Target(raw.url, "m"), at_once(1)).requests
        with pytest.raises(TargetError, match=r"TLS failed: self.signed certificate"):
            probe(Target(raw.url, "m"), at_once(1).requests[0])
    assert record.outcome is Outcome.REFUSED
    assert re.search(r"TLS failed: self.signed certificate", record.error)
    assert raw.bodies == []


@pytest.mark.parametrize("said", ["true", "-3", '"3"', "2.5", "1e999", "9" * 19, "null", "[3]"])
def test_a_count_that_is_no_count_is_not_believed(said):
    lie = b'data: {"choices": [], "usage": {"completion_tokens": %s, "prompt_tokens": %s}}\n\n'
    lie %= said.encode(), said.encode()
    record = one(says(HEAD + b"\r\n" + event("a") + event("b") + event("c") + lie + DONE))
    assert (record.outcome, record.output_tokens, record.tokens_from) == (Outcome.OK, 3, "chunks")
    assert record.prompt_tokens == 4


@pytest.mark.parametrize(
    ("says_it_gave", "outcome"), [(0, Outcome.SHORT), (2, Outcome.SHORT), (9, Outcome.OK)]
)
def test_a_count_that_the_text_does_not_bear_out_is_flagged(says_it_gave, outcome):
    lie = event("a") + event("b") + event("c") + usage(says_it_gave)
    record = one(says(HEAD + b"\r\n" + lie + DONE + event("after the end")))
    assert (record.outcome, record.output_tokens) == (outcome, says_it_gave)
    assert "tokens in 3 chunks" in record.tokens_note


def test_a_stream_that_never_ends_is_timed_out_with_what_it_brought():
    async def never(number, writer):
        writer.write(CHUNKED)
        while True:
            writer.write(framed(event("a")))
            await writer.drain()
            await asyncio.sleep(0.001)

    record = one(never, timeout=0.3)
    assert record.outcome is Outcome.TIMED_OUT
    assert record.output_tokens > 3
