"""One client connection: who sends or reads too slowly, or sends too much, is dropped.

uvicorn reads HTTP and knows one time-out, for a connection that idles between two requests. What it
leaves open, this adds: time for a head and for a body to arrive, the size of a head, time to take what
is written.

A client that shuts down its sending side has hung up: on the wire that is what a closed connection looks
like too, until something is written to it, and to a plain request nothing is written until its end.
"""

from __future__ import annotations

import asyncio
import enum
import socket
from typing import Any

from starlette.exceptions import HTTPException
from uvicorn.protocols.http.httptools_impl import STATUS_LINE, HttpToolsProtocol

from servelib.server.errors import error_body
from servelib.server.settings import ServerSettings

LINGER = 2.0  # seconds in which a client that was refused while it sent may read why


class Phase(enum.Enum):
    """What is expected of the sender."""

    IDLE = "idle"  # the next request, if any
    HEAD = "head"
    BODY = "body"
    REFUSED = "refused"  # nothing: what still comes is thrown away


class GuardedProtocol(HttpToolsProtocol):
    """HTTP/1.1 within the limits of ``settings``.

    A connection holds at most a head, what uvicorn takes of a body before it stops reading (64 KiB), and
    one write that the socket has not taken whole: until it has, nothing more is written. The socket itself
    holds twice ``send_buffer`` at most.
    """

    def __init__(self, *args: Any, settings: ServerSettings, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._settings = settings
        self._phase = Phase.IDLE
        self._head_size = 0  # bytes of the headers so far
        self._pending = 0  # bytes since the parser last gave a whole header or a piece of a body
        self._progress = False
        self._refusal = HTTPException(400, "this is not HTTP that this server can read")
        self._read_timer: asyncio.TimerHandle | None = None
        self._write_timer: asyncio.TimerHandle | None = None
        self._unsent = 0  # bytes the reader had not taken when the write timer was set

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Start the clock: a connection that says nothing is dropped."""
        super().connection_made(transport)
        # Left alone, the system keeps up to megabytes for a reader who takes nothing.
        peer: socket.socket = transport.get_extra_info("socket")
        peer.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, self._settings.send_buffer)
        # Whatever the socket does not take at once stops the writer, and starts the write timer.
        transport.set_write_buffer_limits(high=0)
        self._expect_within(self._settings.head_timeout)

    def connection_lost(self, exc: Exception | None) -> None:
        """Forget everything."""
        super().connection_lost(exc)
        self._expect_within(None)
        self._stop_write_timer()

    # What arrives

    def data_received(self, data: bytes) -> None:
        """Read; a head that is too large is refused before it is read whole."""
        if self._refused:
            return
        self._progress = False
        super().data_received(data)
        if self._progress:
            self._pending = len(data) if self._phase is Phase.HEAD else 0
        else:
            self._pending += len(data)
        if not self._refused and self._pending > self._settings.max_head:
            self._refusal = self._too_large()
            self.send_400_response("")
        elif self._phase is Phase.IDLE and self._responded and not self._timed:
            self._expect_within(self._settings.head_timeout)  # bytes that begin no request

    def on_message_begin(self) -> None:
        """A request begins."""
        super().on_message_begin()
        self._phase = Phase.HEAD
        self._head_size = 0
        self._progress = True
        self._expect_within(self._settings.head_timeout)

    def on_header(self, name: bytes, value: bytes) -> None:
        """One header of the head, or one of those behind a body in chunks."""
        super().on_header(name, value)
        self._progress = True
        self._head_size += len(name) + len(value) + 4
        settings = self._settings
        if self._head_size + len(self.url) > settings.max_head or len(self.headers) > settings.max_headers:
            self._refusal = self._too_large()
            raise self._refusal  # the parser stops, and uvicorn calls send_400_response

    def on_headers_complete(self) -> None:
        """The head is whole; a body may follow."""
        self._phase = Phase.BODY
        self._expect_within(self._settings.body_timeout)
        super().on_headers_complete()

    def on_body(self, body: bytes) -> None:
        """A piece of the body."""
        self._progress = True
        super().on_body(body)

    def on_message_complete(self) -> None:
        """The request is whole."""
        super().on_message_complete()
        self._phase = Phase.IDLE
        self._expect_within(self._settings.head_timeout if self._responded else None)

    def eof_received(self) -> None:
        """The sender has left: what runs for it ends now, whatever is still to be written."""
        if not self._responded:
            self.transport.abort()

    def shutdown(self) -> None:
        """The server stops: who has not sent a whole request by now will not be served."""
        if self._phase is Phase.BODY and not self._responded and not self.cycle.response_started:
            self._refusal = HTTPException(503, "the server is shutting down")
            self.send_400_response("")
        else:
            super().shutdown()

    @property
    def _responded(self) -> bool:
        return self.cycle is None or self.cycle.response_complete

    @property
    def _refused(self) -> bool:
        return self._phase is Phase.REFUSED

    @property
    def _timed(self) -> bool:
        return self._read_timer is not None or self.timeout_keep_alive_task is not None

    def _too_large(self) -> HTTPException:
        settings = self._settings
        limits = f"at most {settings.max_head} bytes in at most {settings.max_headers} headers"
        return HTTPException(431, f"the head of the request is too large: {limits}")

    def _expect_within(self, seconds: float | None) -> None:
        if self._read_timer is not None:
            self._read_timer.cancel()
        self._read_timer = None if seconds is None else self.loop.call_later(seconds, self._late_sender)

    def _late_sender(self) -> None:
        self._read_timer = None
        if self._phase is Phase.REFUSED or (self._phase is Phase.IDLE and self._responded):
            self.transport.close()
        elif self.flow.read_paused or (self._phase is Phase.HEAD and not self._responded):
            # It is we who do not read, or who still answer the request before.
            self._expect_within(self._settings.body_timeout)
        else:
            self._refusal = HTTPException(408, "the request did not arrive in time")
            self.send_400_response("")

    def send_400_response(self, msg: str) -> None:
        """Refuse what is being sent, in the shape of every other error, and read no more of it."""
        answering = not self._responded and (self._phase is not Phase.BODY or self.cycle.response_started)
        if answering or self.pipeline:  # an earlier request's answer is under way: no place for another
            self.transport.abort()
            return
        self._phase = Phase.REFUSED
        status, body = error_body(self._refusal)
        length = str(len(body)).encode()
        head = b"content-type: application/json\r\nconnection: close\r\ncontent-length: " + length
        self.transport.write(STATUS_LINE[status] + head + b"\r\n\r\n" + body)
        if self.cycle is not None:  # whoever waits for the rest of the body
            self.cycle.disconnected = True
            self.cycle.message_event.set()
        # Closed at once, with bytes unread, the system would reset the connection and lose the answer.
        self.transport.write_eof()
        self._expect_within(LINGER)

    # What goes out

    def pause_writing(self) -> None:
        """The socket is full: the writer waits, and the reader's time runs."""
        super().pause_writing()
        self._stop_write_timer()
        self._watch_reader()

    def resume_writing(self) -> None:
        """The reader took it all."""
        super().resume_writing()
        self._stop_write_timer()

    def _watch_reader(self) -> None:
        self._unsent = self.transport.get_write_buffer_size()
        self._write_timer = self.loop.call_later(self._settings.write_timeout, self._late_reader)

    def _late_reader(self) -> None:
        if self.transport.get_write_buffer_size() < self._unsent:
            self._watch_reader()  # slow, but reading
        else:
            self.transport.abort()

    def _stop_write_timer(self) -> None:
        if self._write_timer is not None:
            self._write_timer.cancel()
            self._write_timer = None
