"""One client connection: who sends or reads too slowly, or sends too much, is dropped.

uvicorn reads HTTP and knows one time-out, for a connection that idles between two requests. What it
leaves open, this adds: time for a head and for a body to arrive, the size of a head, time to take what
is written.

A client that shuts down its sending side has hung up: on the wire that is what a closed connection looks
like too, until something is written to it, and to a plain request nothing is written until its end.

Nobody is left without an answer who could have had one: what follows a request and cannot be read does not
cost that request its answer, and who is refused while still sending can read why.
"""

from __future__ import annotations

import asyncio
import enum
import socket
from typing import Any

import httptools
from starlette.exceptions import HTTPException
from uvicorn.protocols.http.httptools_impl import STATUS_LINE, HttpToolsProtocol, RequestResponseCycle

from servelib.server.errors import error_body
from servelib.server.patience import Patience
from servelib.server.settings import ServerSettings

LINGER = 2.0  # seconds in which a client that was answered while it sent may read the answer
PIECE = 4096  # bytes given to the parser at once: as exact as the limit of a head is
SENT_AHEAD = 8  # requests behind the one that is answered, for which reading goes on


class Phase(enum.Enum):
    """What is expected of the sender."""

    IDLE = "idle"  # the next request, if any
    HEAD = "head"
    BODY = "body"
    REFUSED = "refused"  # nothing: what still comes is thrown away


class _Outlet:
    """What a request knows of its connection."""

    def __init__(self, protocol: GuardedProtocol) -> None:
        self.write = protocol.transport.write
        self.is_closing = protocol.transport.is_closing
        self.close = protocol.close_behind_answer


class GuardedProtocol(HttpToolsProtocol):
    """HTTP/1.1 within the limits of ``settings``.

    A connection holds at most a head, what uvicorn takes of a body before it stops reading (64 KiB), a
    few requests sent ahead, and one write that the socket has not taken whole: until it has, nothing more
    is written. The socket itself holds twice ``send_buffer`` at most.
    """

    cycle: RequestResponseCycle | None  # type: ignore[assignment]  # of the latest head that came whole

    def __init__(self, *args: Any, settings: ServerSettings, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._settings = settings
        self._phase = Phase.IDLE
        self._running: RequestResponseCycle | None = None  # the request that is, or was last, answered
        self._reusable = False  # whether the connection may serve another request after the latest
        self._head_size = 0  # bytes of the headers so far
        self._pending = 0  # bytes since the parser last gave a whole header or a piece of a body
        self._progress = False
        self._refusal = HTTPException(400, "this is not HTTP that this server can read")
        self._read_timer: asyncio.TimerHandle | None = None
        self._patience: Patience

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Start the clock: a connection that says nothing is dropped."""
        super().connection_made(transport)
        # Left alone, the system keeps up to megabytes for a reader who takes nothing.
        peer: socket.socket = transport.get_extra_info("socket")
        peer.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, self._settings.send_buffer)
        # Whatever the socket does not take at once stops the writer, and starts the write timer.
        transport.set_write_buffer_limits(high=0)
        self._patience = Patience(transport, self.loop, self._settings.write_timeout)
        self._expect_within(self._settings.head_timeout)

    def connection_lost(self, exc: Exception | None) -> None:
        """Forget everything."""
        super().connection_lost(exc)
        for cycle in [self._running, *(cycle for cycle, _ in self.pipeline)]:
            if cycle is not None:  # uvicorn tells the latest alone
                cycle.disconnected = True
                cycle.message_event.set()
        self.pipeline.clear()
        self._expect_within(None)
        self._patience.end()

    # What arrives

    def data_received(self, data: bytes) -> None:
        """Read; a head that is too large is refused before it is read whole."""
        size = min(PIECE, self._settings.max_head)
        for start in range(0, len(data), size):
            if self._refused or self.transport.is_closing():
                return
            self._read(data[start : start + size])

    def _read(self, piece: bytes) -> None:
        self._progress = False
        self._unset_keepalive_if_required()
        try:
            self.parser.feed_data(piece)
        except httptools.HttpParserUpgrade as offer:
            self._decline(piece[offer.args[0] :])
            return
        except httptools.HttpParserError:
            self.send_400_response("")
            return
        self._pending = 0 if self._progress else self._pending + len(piece)
        if self._pending > self._settings.max_head:
            self._refusal = self._too_large()
            self.send_400_response("")
        elif self._phase is Phase.IDLE and self._responded and not self._timed:
            self._expect_within(self._settings.head_timeout)  # bytes that begin no request

    def _should_upgrade(self) -> bool:
        """Whether the head waits for ``_decline``. A tunnel cannot be declined, only refused."""
        return bool(self.parser.get_method() != b"CONNECT")

    def _decline(self, rest: bytes) -> None:
        """Read a request that offers another protocol (HTTP/2 from Java) again, as if it did not."""
        if not self._should_upgrade():
            self.send_400_response("")
            return
        head = [self.parser.get_method() + b" " + self.url + b" HTTP/1.1"]
        head += [name + b": " + value for name, value in self.headers if name != b"upgrade"]
        self.parser = httptools.HttpRequestParser(self)
        self.data_received(b"\r\n".join(head) + b"\r\n\r\n" + rest)

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
        before = self.cycle
        super().on_headers_complete()
        cycle = self.cycle
        if cycle is None or cycle is before:  # an offer, which is declined first
            return
        cycle.transport = _Outlet(self)  # type: ignore[assignment]
        # An answer given before the body has come whole is the last: the caller may never send the rest.
        self._reusable, cycle.keep_alive = cycle.keep_alive, False
        if 0 < len(self.pipeline) <= SENT_AHEAD:
            self.flow.resume_reading()  # else nobody would see the caller leave

    def _start_asgi_task(self, cycle: RequestResponseCycle, app: Any) -> None:
        self._running = cycle
        self._patience.until = self.loop.time() + self._settings.request_timeout
        super()._start_asgi_task(cycle, app)

    def on_body(self, body: bytes) -> None:
        """A piece of the body."""
        self._progress = True
        super().on_body(body)

    def on_message_complete(self) -> None:
        """The request is whole."""
        super().on_message_complete()
        self._phase = Phase.IDLE
        if self.cycle is not None and not self.cycle.response_started:
            self.cycle.keep_alive = self._reusable
        self._expect_within(self._settings.head_timeout if self._responded else None)

    def eof_received(self) -> None:
        """The sender has left: what runs for it ends now, whatever is still to be written."""
        if not self._responded:
            self.transport.abort()

    def shutdown(self) -> None:
        """The server stops: who has not sent a whole request by now will not be served."""
        if self._phase is Phase.BODY and self.cycle is not None and not self.cycle.response_started:
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
        """Refuse what is being sent, in the shape of every other error, and read no more of it.

        Requests before it have their answers first; then the connection closes, and that is the refusal.
        """
        own = self.cycle if self._phase is Phase.BODY else None  # the request that is refused, if it has one
        self._phase = Phase.REFUSED
        self._expect_within(None)
        self.flow.resume_reading()  # to throw it away
        if self.pipeline and self.pipeline[0][0] is own:
            self.pipeline.popleft()
        last = self.pipeline[0][0] if self.pipeline else self._running
        if last is not None and not last.response_complete and (last is not own or last.response_started):
            last.keep_alive = False
            return
        status, body = error_body(self._refusal)
        length = str(len(body)).encode()
        head = b"content-type: application/json\r\nconnection: close\r\ncontent-length: " + length
        self.transport.write(STATUS_LINE[status] + head + b"\r\n\r\n" + body)
        if own is not None:  # whoever waits for the rest of the body
            own.disconnected = True
            own.message_event.set()
        self.close_behind_answer()

    def close_behind_answer(self) -> None:
        """Close, once what was written has left; a caller who still sends may read it first."""
        self.pipeline.clear()
        if self._phase is Phase.IDLE:
            self.transport.close()
            return
        # Closed at once, with bytes unread, the system would reset the connection and lose the answer.
        self._phase = Phase.REFUSED
        self.flow.resume_reading()
        self.transport.write_eof()
        self._expect_within(LINGER)

    # What goes out

    def pause_writing(self) -> None:
        """The socket is full: the writer waits, and the reader's time runs."""
        super().pause_writing()
        self._patience.begin()

    def resume_writing(self) -> None:
        """The reader took it all."""
        super().resume_writing()
        self._patience.end()
