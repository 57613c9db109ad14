from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from servelib.harness import sse
from servelib.harness.sse import EventParser, EventTooLongError


def read(*pieces: bytes, close: bool = False) -> list[str]:
    parser = EventParser()
    found = [event for piece in pieces for event in parser.feed(piece)]
    return found + parser.close() if close else found


@pytest.mark.parametrize("end", [b"\n", b"\r", b"\r\n"])
def test_every_line_end_ends_a_line(end):
    assert read(b"data: a" + end + end + b"data: b" + end + end) == ["a", "b"]


@pytest.mark.parametrize(
    ("raw", "events"),
    [
        (b"data: a\ndata: b\n\n", ["a\nb"]),
        (b"data:a\n\n", ["a"]),
        (b"data:  a \n\n", [" a "]),
        (b"data\n\n", [""]),
        (b"data: a: b\n\n", ["a: b"]),
        (b": ping\n\ndata: a\n\n", ["a"]),
        (b": ping\ndata: a\n: pong\n\n", ["a"]),
        (b"event: x\nid: 7\nretry: 10\n\n", []),
        (b"event: x\ndata: a\n\n", ["a"]),
        (b"\n\n\n\ndata: a\n\n\n\n\ndata: b\n\n", ["a", "b"]),
        (b"\xef\xbb\xbfdata: a\n\n", ["a"]),
        (b"data: a\n\n\xef\xbb\xbfdata: b\n\n", ["a"]),  # a BOM in the middle is part of a field's name
        ("data: a\u2028b\u2029c\x0bd\x0ce\x85f\x1cg\n\n".encode(), ["a\u2028b\u2029c\x0bd\x0ce\x85f\x1cg"]),
        (b"data: \xff\n\n", ["\ufffd"]),
        (b"dat: a\ndatas: b\n\n", []),
    ],
)
def test_the_standard_s_cases(raw, events):
    assert read(raw) == events
    assert read(*(raw[i : i + 1] for i in range(len(raw)))) == events


def test_an_event_without_its_blank_line_comes_at_the_close():
    assert read(b"data: a\n\ndata: [DONE]") == ["a"]
    assert read(b"data: a\n\ndata: [DONE]", close=True) == ["a", "[DONE]"]
    assert read(b"data: a\r\n", close=True) == ["a"]
    assert read(b": only a comment", close=True) == []
    assert read(b"", close=True) == []


def test_comments_are_counted():
    parser = EventParser()
    parser.feed(b": one\n\n:\n\ndata: a\n: three\n\n")
    assert parser.comments == 3


def test_an_event_may_be_large_but_not_endless(monkeypatch):
    assert read(b"data: ", b"x" * 100_000, b"\n\n") == ["x" * 100_000]
    monkeypatch.setattr(sse, "MAX_EVENT", 1000)
    with pytest.raises(EventTooLongError):
        read(b"data: ", *[b"x" * 100] * 20)


@settings(deadline=None, derandomize=True, max_examples=300)
@given(
    st.lists(
        st.sampled_from([b"data", b": ", b":", b"a", b"\n", b"\r", b"\r\n", b"\n\n", "é\u2028".encode()])
    ),
    st.data(),
)
def test_where_bytes_are_cut_changes_nothing(parts, data):
    raw = b"".join(parts)
    cuts = sorted(data.draw(st.lists(st.integers(0, len(raw)))))
    pieces = [raw[a:b] for a, b in zip([0, *cuts], [*cuts, len(raw)], strict=True)]
    assert read(*pieces, close=True) == read(raw, close=True)
