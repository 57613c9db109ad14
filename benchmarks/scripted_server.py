"""The smallest server that streams like a language model's: no model, raw asyncio, chunks written beforehand.

It answers POST /v1/completions and /v1/chat/completions with as many one-token chunks as were asked for,
then usage and the end mark. GET /written gives, for each request by the last line of its prompt, when it
wrote each chunk, on the machine's monotonic clock: so a client on the same machine can tell how late its
own stamps are.

    python benchmarks/scripted_server.py --rate 400

The address is printed on stdout. Ctrl-C stops.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import time
from typing import Any

MODEL = "scripted"
HEAD = (
    b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\n"
    b"transfer-encoding: chunked\r\nconnection: close\r\n\r\n"
)


def framed(event: bytes) -> bytes:
    """One event as one HTTP chunk."""
    return b"%x\r\n%s\r\n" % (len(event), event)


def chunk(chat: bool) -> bytes:
    """One token, as vLLM writes it."""
    said = {"delta": {"content": " the"}} if chat else {"text": " the"}
    choice = {"index": 0, **said, "logprobs": None, "finish_reason": None}
    kind = "chat.completion.chunk" if chat else "text_completion"
    body = {"id": "cmpl-0", "object": kind, "created": 1, "model": MODEL, "choices": [choice]}
    return framed(b"data: " + json.dumps(body).encode() + b"\n\n")


def ending(prompt: int, tokens: int) -> bytes:
    """Usage, the end mark, and the end of the body."""
    usage = {"prompt_tokens": prompt, "completion_tokens": tokens, "total_tokens": prompt + tokens}
    body = {"id": "cmpl-0", "object": "text_completion", "created": 1, "model": MODEL, "choices": []}
    last = b"data: " + json.dumps({**body, "usage": usage}).encode() + b"\n\n"
    return framed(last) + framed(b"data: [DONE]\n\n") + b"0\r\n\r\n"


class Scripted:
    """``rate`` tokens a second for each stream (None: as fast as they are taken)."""

    def __init__(self, rate: float | None) -> None:
        self.rate = rate
        self.written: dict[str, list[float]] = {}

    async def answer(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """One connection, one request."""
        try:
            head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1").lower()
            if head.startswith("get"):
                found = {"object": "list", "data": [{"id": MODEL, "object": "model"}]}
                body = json.dumps(self.written if "/written" in head else found).encode()
                kind = b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\nconnection: close\r\n"
                writer.write(kind + b"content-length: %d\r\n\r\n" % len(body) + body)
            else:
                size = int(head.partition("content-length:")[2].split("\r\n")[0])
                await self.stream(json.loads(await reader.readexactly(size)), "/chat/" in head, writer)
            await writer.drain()
        except (ConnectionError, asyncio.IncompleteReadError):
            pass
        finally:
            writer.close()

    async def stream(self, asked: dict[str, Any], chat: bool, writer: asyncio.StreamWriter) -> None:
        """The chunks, each at its own time or all as fast as they are taken."""
        tokens = int(asked.get("max_tokens") or asked.get("max_completion_tokens") or 16)
        prompt = asked["messages"][-1]["content"] if chat else asked["prompt"]
        times = self.written[str(prompt).rpartition("\n")[2]] = []
        ready, now = chunk(chat), time.perf_counter
        writer.write(HEAD)
        start = now()
        for i in range(tokens):
            if self.rate is not None:
                wait = start + (i + 1) / self.rate - now()
                if wait > 0:
                    await asyncio.sleep(wait)
            times.append(now())
            writer.write(ready)
            if self.rate is None and i % 16 == 15:
                await writer.drain()
                await asyncio.sleep(0)
        writer.write(ending(len(prompt), tokens))


async def serve(rate: float | None, port: int) -> None:
    """Listen on loopback until cancelled."""
    server = await asyncio.start_server(Scripted(rate).answer, "127.0.0.1", port, backlog=2048)
    print(f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}", flush=True)
    async with server:
        await server.serve_forever()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--rate", type=float, help="tokens a second for each stream (default: no limit)")
    parser.add_argument("--port", type=int, default=0, help="0 takes a free one")
    options = parser.parse_args()
    with contextlib.suppress(KeyboardInterrupt):
        asyncio.run(serve(options.rate, options.port))


if __name__ == "__main__":
    main()
