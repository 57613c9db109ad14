"""One request over HTTP: the connection that stamps, the exchange, and what every way to fail is called."""

from __future__ import annotations

import asyncio
import errno
import json
import os
import ssl
from collections.abc import Callable

import aiohttp
from aiohttp.client_proto import ResponseHandler

from servelib.harness.openai_stream import StreamError, StreamReader, error_text
from servelib.harness.records import Outcome
from servelib.harness.sse import EventTooLongError
from servelib.harness.target import Target

MAX_ERROR_BODY = 65536
NO_DESCRIPTORS = "not sent: this process may open no more files or connections (see ulimit -n)"


class StampedConnection(ResponseHandler):
    """A connection that notes when bytes came in, before anybody waits for a turn to read them."""

    arrived = 0.0
    now: Callable[[], float]

    def data_received(self, data: bytes) -> None:
        """Stamp, then pass on (the asyncio side of a connection)."""
        if data:  # none when only reading is resumed
            self.arrived = self.now()
        super().data_received(data)


def open_session(target: Target, now: Callable[[], float]) -> aiohttp.ClientSession:
    """A client for ``target``: no limit on connections, no proxy or cookies from elsewhere.

    ``now`` stamps what arrives. Raises ``InvalidRequestError`` when the key is not there.
    """

    def connection() -> StampedConnection:
        made = StampedConnection(asyncio.get_running_loop())
        made.now = now
        return made

    connector = aiohttp.TCPConnector(limit=0, limit_per_host=0, force_close=not target.keep_alive)
    connector._factory = connection  # type: ignore[assignment]
    limits = aiohttp.ClientTimeout(total=target.timeout, sock_read=target.idle_timeout)
    return aiohttp.ClientSession(
        connector=connector,
        timeout=limits,
        headers=target.headers(),
        cookie_jar=aiohttp.DummyCookieJar(),
        read_bufsize=2**18,
    )


async def exchange(
    session: aiohttp.ClientSession,
    target: Target,
    body: bytes,
    stream: StreamReader,
    now: Callable[[], float],
) -> tuple[Outcome, str | None]:
    """Post ``body`` and follow the answer into ``stream``; the outcome, and what was wrong.

    Whether there were enough tokens is for the caller to say. Raises nothing but cancellation.
    """
    answered = False
    try:
        async with session.post(target.address, data=body, allow_redirects=False) as response:
            answered = True
            if response.status != 200:
                return await _refusal(response)
            if response.content_type != "text/event-stream":
                return Outcome.STREAM_ERROR, f"the answer is {response.content_type}, not an event stream"
            wire = None if response.connection is None else response.connection.protocol
            while not stream.done:
                data = await response.content.readany()
                # No connection is left when the whole body came with its head.
                arrived = wire.arrived if isinstance(wire, StampedConnection) else now()
                if not data:
                    stream.close(arrived)
                    break
                stream.feed(data, arrived)
    except (StreamError, EventTooLongError) as error:
        return Outcome.STREAM_ERROR, str(error)
    except aiohttp.SocketTimeoutError:
        return Outcome.TIMED_OUT, f"no bytes for {target.idle_timeout:g} s"
    except TimeoutError:
        return Outcome.TIMED_OUT, f"not done after {target.timeout:g} s"
    except aiohttp.ClientConnectorError as error:
        if getattr(error, "errno", None) in (errno.EMFILE, errno.ENFILE):
            return Outcome.ABORTED, NO_DESCRIPTORS
        return Outcome.REFUSED, f"cannot connect: {_reason(error)}"
    except (aiohttp.ClientError, OSError) as error:
        if answered:
            return Outcome.TRUNCATED, f"the stream broke off: {_reason(error)}"
        return Outcome.HTTP_ERROR, f"no answer: {_reason(error)}"
    if not stream.complete:
        return Outcome.TRUNCATED, "the stream ended without its end"
    return Outcome.OK, None


async def _refusal(response: aiohttp.ClientResponse) -> tuple[Outcome, str]:
    """What an answer other than 200 means: 4xx is REFUSED, anything else HTTP_ERROR."""
    raw = await response.content.read(MAX_ERROR_BODY)
    text = raw.decode("utf-8", "replace")
    try:
        said = error_text(json.loads(text))
    except (ValueError, RecursionError):
        said = " ".join(text.split())[:200]
    outcome = Outcome.REFUSED if 400 <= response.status < 500 else Outcome.HTTP_ERROR
    return outcome, f"HTTP {response.status}: {said or response.reason}"


def _reason(error: BaseException) -> str:
    """One line about an error of the network."""
    inner: object = getattr(error, "_certificate_error", None) or getattr(error, "_os_error", None) or error
    if isinstance(inner, ssl.SSLError):
        said = f"TLS failed: {inner.reason or inner}"
        if isinstance(inner, ssl.SSLCertVerificationError):
            said = f"TLS failed: {inner.verify_message}"
    elif isinstance(inner, ConnectionError) and inner.errno:  # asyncio's own words name no reason
        said = os.strerror(inner.errno).lower()
    else:
        said = getattr(inner, "strerror", None) or str(inner) or type(inner).__name__
    return " ".join(said.split())
