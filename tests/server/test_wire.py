"""The bytes on the wire."""

import json
import socket
import urllib.request

from serving import CHAT, COMPLETION, ids, serving

from servelib.server.run import listen


def events(raw):
    assert raw.endswith(b"\n\n")
    lines = raw.decode().split("\n\n")[:-1]
    assert all(line.startswith("data: ") and "\n" not in line for line in lines)
    assert lines[-1] == "data: [DONE]"
    return [json.loads(line[6:]) for line in lines[:-1]]


def stream(served, path, body, **options):
    status, raw = served.fetch(path, json.dumps({**body, "stream": True, **options}).encode())
    assert status == 200
    return events(raw)


def test_a_completion_stream_event_by_event():
    with serving(ids("aé")) as served:
        chunks = stream(served, "/v1/completions", COMPLETION, stream_options={"include_usage": True})
        assert [chunk["choices"] for chunk in chunks] == [
            [{"index": 0, "text": "a", "logprobs": None, "finish_reason": None}],
            [{"index": 0, "text": "é", "logprobs": None, "finish_reason": None}],
            [{"index": 0, "text": "", "logprobs": None, "finish_reason": "stop"}],
            [],
        ]
        assert [chunk["usage"] for chunk in chunks] == [
            *(None, None, None),
            {"prompt_tokens": 2, "completion_tokens": 4, "total_tokens": 6},
        ]
        assert {chunk["object"] for chunk in chunks} == {"text_completion"}
        assert chunks[0]["id"].startswith("cmpl-")
        assert "usage" not in stream(served, "/v1/completions", COMPLETION)[0]


def test_a_chat_stream_event_by_event():
    with serving(ids("aé")) as served:
        chunks = stream(served, "/v1/chat/completions", CHAT)
        assert [chunk["choices"][0]["delta"] for chunk in chunks] == [
            {"role": "assistant", "content": ""},
            {"content": "a"},
            {"content": "é"},
            {},
        ]
        assert [chunk["choices"][0]["finish_reason"] for chunk in chunks] == [None, None, None, "stop"]
        assert {chunk["object"] for chunk in chunks} == {"chat.completion.chunk"}
        assert {chunk["id"] for chunk in chunks} == {chunks[0]["id"]}
        assert chunks[0]["id"].startswith("chatcmpl-")


def test_newlines_and_separators_in_the_text_do_not_break_the_events():
    text = "a\n\ndata: b\r\u2028\u0085\x00\x0b"
    with serving(ids(text)) as served:
        chunks = stream(served, "/v1/completions", COMPLETION, max_tokens=100)
        assert "".join(chunk["choices"][0]["text"] for chunk in chunks) == text


def test_the_head_of_a_stream_tells_proxies_not_to_wait(hello):
    body = json.dumps({**COMPLETION, "stream": True}).encode()
    request = urllib.request.Request(
        hello.url + "/v1/completions", body, {"content-type": "application/json"}
    )
    with urllib.request.urlopen(request, timeout=30) as response:
        assert response.headers["content-type"] == "text/event-stream; charset=utf-8"
        assert response.headers["cache-control"] == "no-cache"
        response.read()


def test_an_answer_never_waits_for_the_callers_acknowledgement():
    """Nagle's algorithm holds back an answer's second packet for 40 ms if the first is not acknowledged."""
    with listen("127.0.0.1", 0) as listener, socket.create_connection(listener.getsockname()):
        accepted, _ = listener.accept()
        with accepted:
            assert accepted.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY)
