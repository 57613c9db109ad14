from __future__ import annotations

import pytest

from servelib.engine.naive import NaiveEngine
from servelib.model.scripted import ScriptedModel
from servelib.notebook.bytes_on_wire import asked, chunks_of, layout, read_until, request_bytes, texts_of
from servelib.server.run import BackgroundServer

HEAD = b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked"
EVENT = b'data: {"id":1,"choices":[{"text":"\xc3\xa9","finish_reason":null}]}\n\n'


def answer(*chunks):
    framed = b"".join(b"%x\r\n%s\r\n" % (len(chunk), chunk) for chunk in (*chunks, b""))
    return HEAD + b"\r\n\r\n" + framed


def test_a_real_answer_is_taken_apart_to_the_last_byte():
    with BackgroundServer(NaiveEngine(ScriptedModel([*"aé€".encode(), 257]))) as server:
        ask = {"model": server.model_id, "prompt": "x", "stream": True}
        with asked(server.url, "/v1/completions", ask) as connection:
            raw = read_until(connection)
    head, chunks = chunks_of(raw)
    assert "".join(texts_of(chunks)) == "aé€"
    assert chunks[-1].endswith(b"data: [DONE]\n\n")
    assert raw == head + answer(*chunks)[len(HEAD) :]


def test_reading_ends_at_the_event_that_was_asked_for():
    with BackgroundServer(NaiveEngine(ScriptedModel([97]))) as server:
        ask = {"model": server.model_id, "prompt": "x", "stream": True, "max_tokens": 500}
        with asked(server.url, "/v1/completions", ask) as connection:
            raw = read_until(connection, events=3)
    assert raw.count(b"data: ") >= 3


def test_the_request_says_how_long_it_is():
    raw = request_bytes("http://127.0.0.1:8000", "/v1/x", {"a": "é"})
    head, _, body = raw.partition(b"\r\n\r\n")
    assert b"\r\nContent-Length: %d\r\n" % len(body) in head
    assert head.startswith(b"POST /v1/x HTTP/1.1\r\nHost: 127.0.0.1:8000\r\n")


def test_the_layout_shows_sizes_ends_and_every_event():
    text = layout(answer(EVENT, EVENT + EVENT, b"data: [DONE]\n\n")).data
    assert f"\n{len(EVENT):x}\\r\\n\n" in text
    assert text.count("data: ") == 5 - 1
    assert 'data: {… "text": "é" …}\\n\\ndata: {… "text": "é" …}\\n\\n  \\r\\n' in text
    assert text.rstrip("`\n").endswith("0\\r\\n\\r\\n")


@pytest.mark.parametrize(
    "raw", [b"", b"HTTP/1.1 200 OK\r\n\r\nhello", answer(EVENT)[:-7], HEAD + b"\r\n\r\n5\r\nab\r\n"]
)
def test_broken_framing_is_refused(raw):
    with pytest.raises(ValueError, match=r"chunk|base 16"):
        chunks_of(raw)
