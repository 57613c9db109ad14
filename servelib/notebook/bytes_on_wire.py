"""A raw HTTP exchange, and its bytes laid out so that every one of them is seen."""

from __future__ import annotations

import json
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any
from urllib.parse import urlsplit

from IPython.display import Markdown


def request_bytes(url: str, path: str, body: dict[str, Any]) -> bytes:
    """A POST as it goes over the wire; the server closes the connection after its answer."""
    content = json.dumps(body).encode()
    head = (
        f"POST {path} HTTP/1.1\r\nHost: {urlsplit(url).netloc}\r\nContent-Type: application/json\r\n"
        f"Content-Length: {len(content)}\r\nConnection: close\r\n\r\n"
    )
    return head.encode() + content


@contextmanager
def asked(url: str, path: str, body: dict[str, Any], timeout: float = 60.0) -> Iterator[socket.socket]:
    """A socket on which the request was sent. Leaving the block hangs up."""
    address = urlsplit(url)
    with socket.create_connection((address.hostname, address.port), timeout=timeout) as connection:
        connection.sendall(request_bytes(url, path, body))
        yield connection


def read_until(connection: socket.socket, events: int | None = None) -> bytes:
    """All bytes of the answer, or those up to the given number of events at least."""
    raw = b""
    while events is None or raw.count(b"data: ") < events:
        got = connection.recv(65536)
        if not got:
            break
        raw += got
    return raw


def chunks_of(raw: bytes) -> tuple[bytes, list[bytes]]:
    """The head of an answer, and its chunks. Raises ``ValueError`` where the framing is broken."""
    head, found, rest = raw.partition(b"\r\n\r\n")
    if not found or b"transfer-encoding: chunked" not in head.lower():
        raise ValueError("not an answer in chunks: " + repr(raw[:80]))
    chunks: list[bytes] = []
    while True:
        size_text, _, rest = rest.partition(b"\r\n")
        size = int(size_text, 16)
        chunk, end, rest = rest[:size], rest[size : size + 2], rest[size + 2 :]
        if len(chunk) != size or end != b"\r\n":
            raise ValueError(f"a chunk of {size} bytes is cut short")
        if size == 0:
            return head, chunks
        chunks.append(chunk)


def layout(raw: bytes, full: int = 1) -> Markdown:
    """The bytes of an answer, a line each piece; lines that begin with ``#`` are ours.

    The first ``full`` events are whole, of the others only their text.
    """
    head, chunks = chunks_of(raw)
    lines = ["# the status, the headers, and an empty line"]
    lines += [_visible(line + b"\r\n") for line in [*head.split(b"\r\n"), b""]]
    for number, chunk in enumerate(chunks, start=1):
        size = b"%x\r\n" % len(chunk)
        if number <= full:
            lines += [
                "# a chunk: its size in hexadecimal,",
                _visible(size),
                f"# its {len(chunk)} bytes, each event in it ended by an empty line,",
                *(_visible(event + b"\n\n") for event in chunk.split(b"\n\n") if event),
                "# and its end",
                _visible(b"\r\n"),
            ]
        else:
            lines += [_visible(size) + "  " + _short(chunk) + "  " + _visible(b"\r\n")]
        if number == full:
            lines.append("# the other chunks, one a line; of each event only its text")
    lines += ["# a chunk of size 0: the end of the answer", _visible(b"0\r\n\r\n")]
    return Markdown("```text\n" + "\n".join(lines) + "\n```")


def texts_of(chunks: list[bytes]) -> list[str]:
    """The text of each event of a completion's stream."""
    events = [line for chunk in chunks for line in chunk.split(b"\n\n") if line]
    data = [event.removeprefix(b"data: ") for event in events]
    return [json.loads(item)["choices"][0]["text"] for item in data if item != b"[DONE]"]


def _short(chunk: bytes) -> str:
    parts = []
    for event in chunk.decode().split("\n\n"):
        if not event:
            continue
        data = event.removeprefix("data: ")
        if data != "[DONE]":
            choice = json.loads(data)["choices"][0]
            reason = ', "finish_reason": ' + json.dumps(choice["finish_reason"])
            data = '{… "text": ' + json.dumps(choice["text"], ensure_ascii=False)
            data += (reason if '"finish_reason":"' in event else "") + " …}"
        parts.append(f"data: {data}\\n\\n")
    return "".join(parts)


def _visible(raw: bytes) -> str:
    return raw.decode().replace("\r", "\\r").replace("\n", "\\n")
