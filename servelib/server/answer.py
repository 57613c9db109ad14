"""Sends the answer, streamed or whole, for as long as the caller is there."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncGenerator, Coroutine
from contextlib import aclosing
from dataclasses import dataclass
from typing import Any

from fastapi import Response
from starlette.types import Message, Receive, Scope, Send

from servelib.clock import Clock
from servelib.server.errors import error_body
from servelib.server.log import CALL, Call
from servelib.server.loop import EngineLoop
from servelib.server.stream import Choice, Fragment, GenerationError, fragments, joined
from servelib.server.wire import Format
from servelib.spans import SpanLog, Stage, timed
from servelib.text.tokenizer import Tokenizer

logger = logging.getLogger(__name__)

SSE_HEADERS = [
    (b"content-type", b"text/event-stream; charset=utf-8"),
    (b"cache-control", b"no-cache"),
    (b"x-accel-buffering", b"no"),  # asks a proxy in between to pass each event on at once
]


@dataclass(frozen=True, slots=True)
class Job:
    """A call that was accepted, its choices, and how to serve and write them."""

    loop: EngineLoop
    tokenizer: Tokenizer
    request_id: str
    choices: tuple[Choice, ...]
    format: Format
    stream: bool
    spans: SpanLog | None
    clock: Clock


class Answer(Response):
    """The response to a job.

    Headers go out with the first fragment. Until then a failure is an HTTP status, for a streamed
    request as for a plain one; after it, an error event ends the stream. A caller who hangs up ends
    the request in the engine, whatever it was doing.
    """

    def __init__(self, job: Job) -> None:
        super().__init__()
        self._job = job
        self._call: Call

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Write the answer (the ASGI side of a response)."""
        self._call = scope[CALL]
        if scope["http_version"] == "1.0":
            send = _whole(send)
        write = self._write_stream(send) if self._job.stream else self._write_whole(send)
        await unless_hung_up(receive, write)

    async def _write_whole(self, send: Send) -> None:
        job = self._job
        parts: list[list[Fragment]] = [[] for _ in job.choices]
        async with aclosing(self._fragments()) as turns:
            async for made in turns:
                for fragment in made:
                    parts[fragment.index].append(fragment)
        with timed(job.spans, job.clock, job.request_id, Stage.STREAM):
            body = job.format.whole([joined(of_one) for of_one in parts])
            length = str(len(body)).encode()
            headers = [(b"content-type", b"application/json"), (b"content-length", length)]
            await send({"type": "http.response.start", "status": 200, "headers": headers})
            await send({"type": "http.response.body", "body": body})

    async def _write_stream(self, send: Send) -> None:
        job = self._job
        write = job.format.events
        begun, left, generated = False, len(job.choices), 0
        try:
            async with aclosing(self._fragments()) as turns:
                async for made in turns:
                    with timed(job.spans, job.clock, job.request_id, Stage.STREAM):
                        events = [write(fragment) for fragment in made]  # one send carries them all
                        ends = [part.generated for part in made if part.finish_reason is not None]
                        left, generated = left - len(ends), generated + sum(ends)
                        if not left:
                            events.append(job.format.end(generated))
                        if not begun:
                            begun = True
                            await send({"type": "http.response.start", "status": 200, "headers": SSE_HEADERS})
                        body = b"".join(events)
                        await send({"type": "http.response.body", "body": body, "more_body": left > 0})
        except Exception as error:
            if not begun:
                raise
            # Only a failure of the engine on this request is news: the rest is logged where it happens.
            level = logging.ERROR if isinstance(error, GenerationError) else logging.DEBUG
            logger.log(level, "%s failed mid-stream: %s", job.request_id, error)
            event = b"data: " + error_body(error)[1] + b"\n\n"
            await send({"type": "http.response.body", "body": event, "more_body": False})

    def _fragments(self) -> AsyncGenerator[list[Fragment], None]:
        job = self._job
        return fragments(
            job.loop, job.tokenizer, job.choices, call=self._call, spans=job.spans, clock=job.clock
        )


def _whole(send: Send) -> Send:
    """Keeps a stream until its end: HTTP/1.0 knows no chunks, so the length has to be said first."""
    start: dict[str, Any] = {}
    parts: list[bytes] = []

    async def gather(message: Message) -> None:
        if message["type"] == "http.response.start":
            start.update(message)
            return
        parts.append(message["body"])
        if not message.get("more_body", False):
            body = b"".join(parts)
            length = (b"content-length", str(len(body)).encode())
            headers = [header for header in start["headers"] if header[0] != length[0]]
            await send(start | {"headers": [*headers, length]})
            await send({"type": "http.response.body", "body": body})

    return gather


async def unless_hung_up(receive: Receive, work: Coroutine[None, None, None]) -> None:
    """Run ``work`` to its end, or cancel it as soon as the caller leaves. Raises what it raises."""
    working = asyncio.ensure_future(work)
    leaving = asyncio.ensure_future(_hung_up(receive))
    try:
        await asyncio.wait({working, leaving}, return_when=asyncio.FIRST_COMPLETED)
    finally:
        # Nobody else knows these two: whatever happens here, neither may outlive this call.
        working.cancel()
        leaving.cancel()
        await asyncio.gather(working, leaving, return_exceptions=True)
    if not working.cancelled():
        working.result()


async def _hung_up(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass
