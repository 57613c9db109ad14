"""What chunks mean and how tokens are credited. Proof 5 of the harness: the stream fuzz."""

from __future__ import annotations

import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from raw_server import DONE, event, usage

from servelib.harness.openai_stream import Kind, StreamError, StreamReader, credit, read_chunk


def chat(**delta: object) -> str:
    return json.dumps({"choices": [{"index": 0, "delta": delta, "finish_reason": None}]})


@pytest.mark.parametrize(
    ("data", "kind", "text"),
    [
        ('{"choices": [{"text": "a"}]}', Kind.TEXT, "a"),
        ('{"choices": [{"text": ""}]}', Kind.EMPTY, ""),
        (chat(role="assistant"), Kind.ROLE, ""),
        (chat(role="assistant", content=""), Kind.ROLE, ""),
        (chat(role="assistant", content="a"), Kind.TEXT, "a"),
        (chat(content=None, reasoning_content="hm"), Kind.REASONING, "hm"),
        (chat(reasoning="hm"), Kind.REASONING, "hm"),
        (chat(tool_calls=[{"function": {"name": "f", "arguments": "{}"}}]), Kind.TOOL, "f{}"),
        (chat(), Kind.EMPTY, ""),
        ('{"choices": [], "usage": {"completion_tokens": 3}}', Kind.USAGE, ""),
        ('{"choices": []}', Kind.EMPTY, ""),
        ("[DONE]", Kind.DONE, ""),
        (" [DONE] ", Kind.DONE, ""),
        (' {"choices": [{"text": "a"}]}\n', Kind.TEXT, "a"),
    ],
)
def test_chunks_are_told_apart(data, kind, text):
    chunk = read_chunk(data)
    assert (chunk.kind, chunk.text) == (kind, text)


@pytest.mark.parametrize(
    ("data", "said"),
    [
        ('{"error": {"message": "out of memory", "code": 500}}', "out of memory"),
        ('{"error": "down"}', "down"),
        ('{"object": "error", "message": "bad", "code": 400}', "bad"),
        ("{", "not JSON"),
        ("", "not JSON"),
        ("{} {}", "not JSON"),
        ("[" * 100_000, "not JSON"),
        ("5", "not an object"),
        ('{"choices": [5]}', "no known form"),
        ('{"choices": {"a": 1}}', "no known form"),
        ('{"choices": [{"text": 5}]}', "no text"),
    ],
)
def test_an_error_inside_a_stream_is_an_error(data, said):
    with pytest.raises(StreamError, match=said):
        read_chunk(data)


def reader(*events: bytes) -> StreamReader:
    stream = StreamReader()
    for i, raw in enumerate(events):
        stream.feed(raw, float(i))
    return stream


def test_one_token_a_chunk():
    found = credit(reader(event("a"), event("b"), event("c"), usage(3), DONE))
    assert (found.events, found.source, found.note) == ([(0, 1), (1, 1), (2, 1)], "usage", None)


def test_more_tokens_than_chunks_are_shared_out_by_length_and_flagged():
    found = credit(reader(event("ab"), event("abcdefgh"), usage(6), DONE))
    assert found.events == [(0, 1), (1, 5)]
    assert found.note == "6 tokens in 2 chunks: shared out by length of text"


def test_an_end_token_has_no_text_and_comes_last():
    assert credit(reader(event("a"), event("b"), event("", finish="stop"), usage(3))).events == [
        (0, 1),
        (1, 2),
    ]


def test_fewer_tokens_than_chunks():
    found = credit(reader(event("a"), event("b"), event("c"), usage(2), DONE))
    assert found.events == [(0, 1), (1, 1)]
    assert found.note


def test_running_usage_says_how_many_each_chunk_has():
    chunks = [event(text, usage={"completion_tokens": n}) for text, n in (("a", 1), ("bcd", 5), ("e", 6))]
    found = credit(reader(*chunks, usage(7), DONE))
    assert (found.events, found.note) == ([(0, 1), (1, 4), (2, 2)], None)


def test_without_usage_a_tokenizer_counts_and_without_one_the_chunks():
    stream = reader(event("ab"), event("cd"), DONE)
    assert credit(stream, len).events == [(0, 2), (1, 2)]
    assert credit(stream, len).source == "tokenizer"
    assert credit(stream).events == [(0, 1), (1, 1)]
    assert credit(stream).source == "chunks"


def test_a_tokenizer_that_disagrees_with_usage_is_flagged_and_usage_holds():
    found = credit(reader(event("a"), event("b"), usage(2), DONE), lambda _: 5)
    assert sum(n for _, n in found.events) == 2
    assert found.note == "usage says 2 tokens, the tokenizer 5"


def test_tokens_that_nobody_saw():
    found = credit(reader(usage(3), DONE))
    assert found.events == []
    assert "no text" in found.note
    assert credit(reader(usage(0), DONE)).note is None


def test_half_a_surrogate_pair_is_text():
    found = credit(reader(b'data: {"choices": [{"text": "\\ud83d"}]}\n\n', usage(2), DONE), len)
    assert found.events == [(0, 2)]


@settings(deadline=None, derandomize=True)
@given(st.lists(st.text(min_size=1), min_size=1, max_size=8), st.integers(0, 40))
def test_events_add_up_to_usage_and_the_first_chunk_has_the_first_token(texts, tokens):
    found = credit(reader(*map(event, texts), usage(tokens), DONE))
    assert sum(n for _, n in found.events) == tokens
    assert all(n >= 1 for _, n in found.events)
    assert [time for time, _ in found.events] == [float(i) for i in range(min(len(texts), tokens))]
    assert (found.note is None) == (tokens == len(texts))


TEXTS = st.text(st.sampled_from("ab é\u2028\u2029\x85\n\r👩\u200d\ufeff"), min_size=1, max_size=5)
NOISE = {
    "comment": ": ping",
    "empty": 'data: {"choices": [{"index": 0, "delta": {}, "finish_reason": null}]}',
    "role": 'data: {"choices": [{"index": 0, "delta": {"role": "assistant", "content": ""}}]}',
    "other": "event: x\nid: 4\nretry: 1",
}


@settings(deadline=None, derandomize=True, max_examples=200)
@given(st.data())
def test_proof_5_stream_fuzz(data):
    """Whatever the bytes' pieces, line ends and company: the same text, the same number of tokens."""
    texts = data.draw(st.lists(st.tuples(TEXTS, st.sampled_from(["content", "reasoning"])), max_size=6))
    blocks = []
    for text, name in texts:
        blocks += [NOISE[kind] for kind in data.draw(st.lists(st.sampled_from(sorted(NOISE)), max_size=2))]
        said = {"choices": [{"index": 0, "delta": {name: text}, "finish_reason": None}]}
        lines = json.dumps(said, ensure_ascii=False, indent=data.draw(st.sampled_from([None, 1]))).split("\n")
        blocks.append("\n".join(f"data: {line}" for line in lines))
    how = data.draw(st.sampled_from(["done", "finish reason", "missing", "error", "cut"]))
    if how == "finish reason":
        blocks.append('data: {"choices": [{"index": 0, "delta": {}, "finish_reason": "length"}]}')
    counted = data.draw(st.booleans())
    if counted:
        said = {"choices": [], "usage": {"completion_tokens": len(texts), "prompt_tokens": 1}}
        blocks.append("data: " + json.dumps(said))
    blocks += {"done": ["data: [DONE]"], "error": ['data: {"error": {"message": "out of memory"}}']}.get(
        how, []
    )
    raw = "\n\n".join(blocks) + "\n\n"
    # The JSON text itself holds no raw CR or LF: each newline here is the stream's own.
    raw = raw.replace("\n", data.draw(st.sampled_from(["\n", "\r", "\r\n"])))
    sent = data.draw(st.sampled_from([b"", b"\xef\xbb\xbf"])) + raw.encode()
    if how == "cut":
        sent += b'data: {"choices": [{"te'
    cuts = sorted(data.draw(st.lists(st.integers(0, len(sent)), max_size=12)))
    stream, error = StreamReader(), None
    try:
        for start, end in zip([0, *cuts], [*cuts, len(sent)], strict=True):
            stream.feed(sent[start:end], float(end))
        stream.close(float(len(sent)))
    except StreamError as found:
        error = str(found)
    assert [text for _, text, _ in stream.moments] == [text for text, _ in texts]
    assert sum(tokens for _, tokens in credit(stream).events) == len(texts)
    assert credit(stream).note is None
    assert stream.complete == (how in ("done", "finish reason"))
    assert (error is not None) == (how in ("error", "cut"))
    assert how != "error" or error == "out of memory"
    times = [time for time, _ in credit(stream).events]
    assert times == sorted(times)
