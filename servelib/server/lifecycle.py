"""The web server's own life: it says when it is ready, and it ends in order.

On the first signal nothing more is taken: ``/ready`` turns 503 and a new request is refused, while the
port stays open, so that who balances load learns it by asking. Requests in flight have the grace to end;
then, or on a second signal, the rest end with an error event and the port closes.
"""

from __future__ import annotations

import asyncio
import errno
import functools
import logging
import math
import os
import socket
from collections.abc import Callable
from contextlib import suppress
from types import FrameType
from typing import Any, cast

import uvicorn
from fastapi import FastAPI

from servelib.server.connection import GuardedProtocol
from servelib.server.loop import EngineLoop
from servelib.server.settings import ServerSettings

logger = logging.getLogger(__name__)

FLUSH = 3.0  # seconds that the last bytes of an answer have to leave, once all requests are over


class Server(uvicorn.Server):
    """uvicorn, quiet, with this package's limits on connections and its own way to end."""

    def __init__(
        self, app: FastAPI, *, settings: ServerSettings, grace: float, on_ready: Callable[[], None]
    ) -> None:
        super().__init__(
            uvicorn.Config(
                app,
                http=cast(Any, functools.partial(GuardedProtocol, settings=settings)),
                lifespan="on",
                ws="none",
                access_log=False,
                log_config=None,  # it would write to stderr past whoever asked for silence, or for JSON
                log_level="error",  # what a client did wrong is told to the client
                server_header=False,
                timeout_keep_alive=cast(int, settings.keep_alive),
                timeout_graceful_shutdown=math.ceil(FLUSH) + 5,  # never reached: all is cut before
            )
        )
        self._grace = grace
        self._on_ready = on_ready
        self._engine_loop: EngineLoop = app.state.service.loop
        self._ended_wait = False
        self._event_loop: asyncio.AbstractEventLoop | None = None

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        """The first signal begins the grace, the second ends it, a third Ctrl-C ends everything."""
        self._engine_loop.drain()
        if self.should_exit and not self._ended_wait and self._event_loop is not None:
            self._ended_wait = True
            # Not here: this thread may be holding the very lock that stopping the engine takes.
            self._event_loop.call_soon_threadsafe(self._engine_loop.begin_stop)
        else:
            super().handle_exit(sig, frame)

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Listen, then say so."""
        self._event_loop = asyncio.get_running_loop()
        self._event_loop.set_exception_handler(_FullHouse())
        await super().startup(sockets)
        self._on_ready()

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """Wait for the requests in flight, end the rest, close."""
        self._engine_loop.drain()
        with suppress(TimeoutError):
            await asyncio.wait_for(self._engine_loop.until_idle(), self._grace)
        self._engine_loop.begin_stop()
        cut = asyncio.get_running_loop().call_later(FLUSH, self._cut)
        try:
            await super().shutdown(sockets)
        finally:
            cut.cancel()

    def _cut(self) -> None:
        for connection in list(self.server_state.connections):
            connection.transport.abort()


class _FullHouse:
    """Says once in a while that there are no descriptors left.

    asyncio reports each place in the backlog by itself and tries again in a second: thousands of
    tracebacks a second, when the log is what matters.
    """

    def __init__(self) -> None:
        self._quiet_until = -math.inf

    def __call__(self, loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        error = context.get("exception")
        if not (isinstance(error, OSError) and error.errno in (errno.EMFILE, errno.ENFILE)):
            loop.default_exception_handler(context)
        elif loop.time() >= self._quiet_until:
            self._quiet_until = loop.time() + 60.0
            logger.error("no new connection: %s; raise the limit (ulimit -n)", os.strerror(error.errno))
