"""A server whose every byte is written by the test."""

from __future__ import annotations

import asyncio
import json
import ssl
import threading
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

from servelib.harness.trace import Trace, TraceRequest

HEAD = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\nconnection: close\r\n"
CHUNKED = HEAD + b"transfer-encoding: chunked\r\n\r\n"


@dataclass
class Raw:
    """What came in, and where to send it."""

    url: str = ""
    heads: list[str] = field(default_factory=list)
    bodies: list[dict] = field(default_factory=list)


Handler = Callable[[int, asyncio.StreamWriter], Awaitable[None]]
"""Called with the number of the connection and what to write to."""


@contextmanager
def raw_server(handler: Handler, tls: ssl.SSLContext | None = None) -> Iterator[Raw]:
    """Listen on loopback in a thread; each connection reads one request and calls ``handler``."""
    raw, ready, stop = Raw(), threading.Event(), []

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1")
            size = int(head.lower().partition("content-length:")[2].split("\r\n")[0])
            number = len(raw.bodies)
            raw.heads.append(head)
            raw.bodies.append(json.loads(await reader.readexactly(size)))
            await handler(number, writer)
            await writer.drain()
        except (ConnectionError, asyncio.IncompleteReadError, asyncio.CancelledError):
            pass
        finally:
            writer.close()

    async def main() -> None:
        async with await asyncio.start_server(answer, "127.0.0.1", 0, ssl=tls) as server:
            raw.url = f"http{'s' if tls else ''}://127.0.0.1:{server.sockets[0].getsockname()[1]}"
            end = asyncio.Event()
            loop = asyncio.get_running_loop()
            stop.append(lambda: loop.call_soon_threadsafe(end.set))
            ready.set()
            await end.wait()
            for task in asyncio.all_tasks() - {asyncio.current_task()}:
                task.cancel()

    thread = threading.Thread(target=asyncio.run, args=(main(),), daemon=True)
    thread.start()
    assert ready.wait(20)
    try:
        yield raw
    finally:
        stop[0]()
        thread.join(20)


def event(text: str | None = None, *, finish: str | None = None, chat: bool = False, **more: object) -> bytes:
    """One chunk of a completions or chat stream; without a text, one with no choices."""
    choices = []
    if text is not None:
        said = {"delta": {"content": text}} if chat else {"text": text}
        choices = [{"index": 0, **said, "finish_reason": finish}]
    return b"data: " + json.dumps({"choices": choices, **more}, ensure_ascii=False).encode() + b"\n\n"


def usage(tokens: int, prompt: int = 4) -> bytes:
    """The chunk that counts."""
    return event(usage={"prompt_tokens": prompt, "completion_tokens": tokens})


DONE = b"data: [DONE]\n\n"


def framed(*parts: bytes) -> bytes:
    """HTTP chunks, one a part."""
    return b"".join(b"%x\r\n%s\r\n" % (len(part), part) for part in parts)


def at_once(n: int, tokens: int = 3) -> Trace:
    """``n`` requests at time 0."""
    made = tuple(TraceRequest(f"r{i}", 0.0, (65, 66, 67, 68), tokens) for i in range(n))
    return Trace(made, "at once", "4", str(tokens), seed=0)
