"""A client that costs next to nothing, for measuring a server that shares its cores. Standard library only.

    python benchmarks/stream_client.py streams       a JSON job on stdin, what was seen on stdout
    python benchmarks/stream_client.py health URL    GET URL/health every 20 ms until stdin ends

While streams run it only keeps bytes and the time they came, one system call a read; HTTP and events are
taken apart when all have ended. So nothing is guessed from sizes, and nothing is parsed at the server's cost.
Times are of the machine's one monotonic clock.
"""

from __future__ import annotations

import json
import selectors
import socket
import sys
import time
from bisect import bisect_left
from typing import Any
from urllib.parse import urlsplit

EVERY = 0.02
now = time.perf_counter


class Stream:
    """One request on a connection of its own, and the bytes that came back."""

    def __init__(self, host: str, port: int, body: dict[str, Any]) -> None:
        data = json.dumps(body).encode()
        head = f"POST /v1/completions HTTP/1.1\r\nhost: {host}:{port}\r\nconnection: close\r\n"
        head += f"content-type: application/json\r\ncontent-length: {len(data)}\r\n\r\n"
        self._request = head.encode() + data
        self.socket = socket.create_connection((host, port))
        self.sent = 0.0
        self._pieces: list[bytes] = []
        self._times: list[float] = []

    def send(self) -> None:
        """Ask."""
        self.sent = now()
        self.socket.sendall(self._request)

    def read(self) -> bool:
        """Keep what has come; False when the server has closed."""
        piece = self.socket.recv(1 << 18)
        if not piece:
            return False
        self._times.append(now())
        self._pieces.append(piece)
        return True

    def result(self) -> dict[str, Any]:
        """Every event as [time, text, finish reason], in order. Raises on anything but a whole stream."""
        raw = b"".join(self._pieces)
        head, _, _ = raw.partition(b"\r\n\r\n")
        if not head.startswith(b"HTTP/1.1 200") or b"transfer-encoding: chunked" not in head.lower():
            raise SystemExit(f"no stream: {raw[:500]!r}")
        ends, total = [], 0
        for piece in self._pieces:
            total += len(piece)
            ends.append(total)
        events: list[tuple[float, str, str | None]] = []
        at, body = len(head) + 4, b""
        while True:
            line = raw.index(b"\r\n", at)
            size = int(raw[at:line], 16)
            at = line + 2 + size + 2
            if size == 0:
                break
            body += raw[line + 2 : line + 2 + size]
            *whole, body = body.split(b"\n\n")
            came = self._times[bisect_left(ends, line + 2 + size)]
            events += [(came, *_said(event)) for event in whole if event != b"data: [DONE]"]
        if body or at != len(raw) or not raw.endswith(b"data: [DONE]\n\n\r\n0\r\n\r\n"):
            raise SystemExit(f"a stream did not end as it should: {raw[-300:]!r}")
        return {"sent": self.sent, "events": events}


def _said(event: bytes) -> tuple[str, str | None]:
    if not event.startswith(b"data: {"):
        raise SystemExit(f"not an event: {event!r}")
    (choice,) = json.loads(event[6:])["choices"]
    return choice["text"], choice["finish_reason"]


def streams(job: dict[str, Any]) -> list[dict[str, Any]]:
    """Ask for ``bodies``, all together or one after the other (``together``)."""
    where = urlsplit(job["url"])
    assert where.hostname is not None
    assert where.port is not None
    bodies: list[dict[str, Any]] = job["bodies"]
    groups = [bodies] if job["together"] else [[body] for body in bodies]
    found = []
    for group in groups:
        asked = [Stream(where.hostname, where.port, body) for body in group]
        with selectors.DefaultSelector() as waiting:
            for stream in asked:
                waiting.register(stream.socket, selectors.EVENT_READ, stream)
            for stream in asked:
                stream.send()
            while waiting.get_map():
                for key, _ in waiting.select():
                    if not key.data.read():
                        waiting.unregister(key.fileobj)
                        key.data.socket.close()
        found += asked
    return [stream.result() for stream in found]


def health(url: str) -> list[tuple[float, float]]:
    """(when due, how long until the answer was whole), on a new connection each, as a balancer's probe.

    Timed from when it was due, and none waits for the one before: a stalled server is seen by all.
    """
    where = urlsplit(url)
    ask = f"GET /health HTTP/1.1\r\nhost: {where.netloc}\r\nconnection: close\r\n\r\n".encode()
    found: list[tuple[float, float]] = []
    print("ready", flush=True)
    due, more = now(), True
    with selectors.DefaultSelector() as waiting:
        waiting.register(sys.stdin, selectors.EVENT_READ)
        while waiting.get_map():
            for key, _ in waiting.select(max(0.0, due - now()) if more else None):
                connection = key.fileobj
                if not isinstance(connection, socket.socket):  # stdin has ended: let the last ones finish
                    more = False
                    waiting.unregister(connection)
                elif piece := connection.recv(4096):
                    key.data.append(piece)
                else:
                    was_due, *answer = key.data
                    found.append((was_due, now() - was_due))
                    waiting.unregister(connection)
                    connection.close()
                    if not b"".join(answer).startswith(b"HTTP/1.1 200"):
                        raise SystemExit(f"/health: {answer!r}")
            if more and now() >= due:
                connection = socket.create_connection((where.hostname, where.port))
                connection.sendall(ask)
                waiting.register(connection, selectors.EVENT_READ, [due])
                due += EVERY
    return found


if __name__ == "__main__":
    result = health(sys.argv[2]) if sys.argv[1] == "health" else streams(json.load(sys.stdin))
    json.dump(result, sys.stdout)
