"""Raw sockets: clients that no HTTP library would be, slow, silent, half there, gone."""

from __future__ import annotations

import contextlib
import json
import socket
import urllib.parse
from typing import Any


class Raw:
    """One connection; every wait has a limit, so that a failing test ends."""

    def __init__(self, url: str, *, receive_buffer: int | None = None) -> None:
        self.socket = socket.socket()
        if receive_buffer is not None:
            self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_buffer)
        self.socket.settimeout(20)
        host, _, port = urllib.parse.urlsplit(url).netloc.partition(":")
        self.socket.connect((host, int(port)))

    def __enter__(self) -> Raw:
        return self

    def __exit__(self, *_: object) -> None:
        self.socket.close()

    def send(self, data: bytes) -> Raw:
        """Send bytes; the server may have left, which is no failure of the test."""
        with contextlib.suppress(BrokenPipeError, ConnectionResetError):
            self.socket.sendall(data)
        return self

    def post(self, path: str, body: dict[str, Any]) -> Raw:
        """A whole request."""
        data = json.dumps(body).encode()
        return self.send(head(path, f"content-length: {len(data)}") + data)

    def get(self, path: str) -> Raw:
        """A whole request without a body."""
        return self.send(f"GET {path} HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n".encode())

    def some(self) -> bytes:
        """What comes next; nothing if the server has left."""
        try:
            return self.socket.recv(65536)
        except ConnectionResetError:
            return b""

    def whole(self) -> bytes:
        """A whole answer that says how long it is."""
        raw = b""
        while b"\r\n\r\n" not in raw or len(raw.partition(b"\r\n\r\n")[2]) < length_of(raw):
            more = self.some()
            assert more, raw
            raw += more
        return raw

    def rest(self) -> bytes:
        """All that comes until the server leaves."""
        return b"".join(iter(self.some, b""))


def head(path: str, *headers: str) -> bytes:
    """The head of a POST of JSON."""
    lines = [f"POST {path} HTTP/1.1", "host: x", "content-type: application/json", *headers]
    return "\r\n".join(lines).encode() + b"\r\n\r\n"


def length_of(raw: bytes) -> int:
    """The length of the body that an answer announces."""
    return int(answer(raw)[1]["content-length"])


def answer(raw: bytes) -> tuple[int, dict[str, str], bytes]:
    """Status, headers and body of a whole answer."""
    top, _, body = raw.partition(b"\r\n\r\n")
    lines = top.decode().split("\r\n")
    headers = dict(line.lower().split(": ", 1) for line in lines[1:])
    return int(lines[0].split()[1]), headers, body
