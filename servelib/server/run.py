"""Starting and stopping: ``serve`` for a terminal, ``BackgroundServer`` for tests and notebooks."""

from __future__ import annotations

import errno
import gc
import logging
import os
import signal
import socket
import sys
import threading
from collections.abc import Callable
from types import TracebackType

from servelib.clock import Clock
from servelib.engine.protocol import Engine
from servelib.server.app import create_app
from servelib.server.lifecycle import Server
from servelib.server.settings import ServerSettings
from servelib.spans import SpanLog
from servelib.text.chat import ChatTemplate
from servelib.text.tokenizer import Tokenizer

logger = logging.getLogger(__name__)

BACKLOG = 2048


class BindError(OSError):
    """The address cannot be listened on; the message is one line that says why and what to do."""


def listen(host: str, port: int) -> socket.socket:
    """A listening socket; port 0 takes a free one. Raises ``BindError``."""
    if not 0 <= port <= 65535:
        raise BindError(f"cannot listen on {host}:{port}: a port is a number from 0 to 65535")
    try:
        family, _, _, _, address = socket.getaddrinfo(
            host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )[0]
        listener = socket.create_server(address[:2], family=family, backlog=BACKLOG)
        # Connections inherit it; asyncio sets it only on sockets made in another way. Without it the
        # second packet of an answer waits for the caller's delayed acknowledgement: 40 ms.
        listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        return listener
    except ValueError as error:  # a name that no look-up can take: a label too long, a NUL
        raise BindError(f"cannot listen on {host!r:.80}: not a host name; choose another --host") from error
    except OSError as error:
        hint = "choose another --host or --port"
        if error.errno == errno.EADDRINUSE:
            hint = "stop what uses it, or choose another --port"
        # Name look-ups have codes and words of their own, all below zero.
        reason = os.strerror(error.errno) if error.errno and error.errno > 0 else error.strerror
        raise BindError(f"cannot listen on {host}:{port}: {str(reason).lower()}; {hint}") from error


def url_of(listener: socket.socket) -> str:
    """The URL to reach a listening socket by."""
    host, port = listener.getsockname()[:2]
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"


def serve(
    engine: Engine | Callable[[], Engine],
    *,
    host: str = "127.0.0.1",
    port: int = 8000,
    tokenizer: Tokenizer | None = None,
    chat_template: ChatTemplate | None = None,
    model_id: str | None = None,
    spans: SpanLog | None = None,
    settings: ServerSettings | None = None,
    on_ready: Callable[[str], None] | None = None,
) -> None:
    """Serve until SIGTERM or Ctrl-C, then return.

    ``engine`` may be a function that builds one: it is called once the port is ours, so that a
    port in use costs no loading time. ``on_ready`` is told the URL when requests are answered; by
    default a line on stderr says it.
    On the way out no new request is taken; those in flight have the grace of ``settings`` to finish, then
    end with an error. A second signal ends the wait. Spans are not kept unless a log is given: a log
    grows for as long as the server runs. Raises ``BindError``.
    """
    settings = settings or ServerSettings()
    with listen(host, port) as listener:
        url = url_of(listener)
        built = engine() if callable(engine) else engine
        app = create_app(
            built,
            tokenizer=tokenizer,
            chat_template=chat_template,
            model_id=model_id,
            spans=spans,
            settings=settings,
        )
        announce = on_ready or _announce(built, app.state.service.model_id)
        server = Server(app, settings=settings, grace=settings.grace, on_ready=lambda: announce(url))
        # A full collection walks all that is alive, and torch alone keeps it busy for 0.2 s: every
        # stream and every health check would wait. What was made so far lives as long as we do.
        gc.collect()
        gc.freeze()
        # uvicorn raises the signal again on its way out; with these in place that is a clean return.
        before = {number: signal.signal(number, server.handle_exit) for number in _SIGNALS}
        try:
            server.run(sockets=[listener])
        finally:
            gc.unfreeze()
            for number, handler in before.items():
                signal.signal(number, handler)


class BackgroundServer:
    """A server on a free loopback port, in a thread, for the length of a ``with`` block.

    ``url`` is its address and ``spans`` its log. To see the engine's stages there too, make the log
    first and give it to both: ``NaiveEngine(model, spans=log)``, ``BackgroundServer(engine, spans=log)``.
    Leaving the block ends what is in flight, joins both threads and closes the port; the engine is
    then free and idle. Only a step that does not end within 5 seconds is left behind.
    """

    def __init__(
        self,
        engine: Engine,
        *,
        tokenizer: Tokenizer | None = None,
        chat_template: ChatTemplate | None = None,
        model_id: str | None = None,
        spans: SpanLog | None = None,
        clock: Clock | None = None,
        settings: ServerSettings | None = None,
    ) -> None:
        settings = settings or ServerSettings()
        self.spans = SpanLog() if spans is None else spans
        self.app = create_app(
            engine,
            tokenizer=tokenizer,
            chat_template=chat_template,
            model_id=model_id,
            spans=self.spans,
            clock=clock,
            settings=settings,
        )
        self.model_id: str = self.app.state.service.model_id
        self.url = ""
        self._ready = threading.Event()
        self._server = Server(self.app, settings=settings, grace=0.0, on_ready=self._ready.set)
        self._error: BaseException | None = None
        self._thread: threading.Thread | None = None

    def __enter__(self) -> BackgroundServer:
        """Start, and return when requests are answered. Raises what start-up raised."""
        if self._thread is not None:
            raise RuntimeError("a BackgroundServer runs once; make a new one")
        listener = listen("127.0.0.1", 0)
        self.url = url_of(listener)
        self._thread = threading.Thread(
            target=self._run, args=(listener,), name="servelib-server", daemon=True
        )
        self._thread.start()
        try:
            self._ready.wait()
        except BaseException:  # Ctrl-C: nobody will leave a block that was never entered
            self._server.should_exit = True
            raise
        if self._error is not None:
            self._thread.join()
            raise RuntimeError("the server did not start") from self._error
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Stop, and wait until nothing of the server is left."""
        self._server.should_exit = True
        if self._thread is not None:
            self._thread.join()

    def _run(self, listener: socket.socket) -> None:
        try:
            with listener:
                self._server.run(sockets=[listener])
        except BaseException as error:  # uvicorn leaves with SystemExit when start-up fails
            self._error = error
        finally:
            self._ready.set()


def _announce(engine: Engine, model_id: str) -> Callable[[str], None]:
    def announce(url: str) -> None:
        label = engine.model.config.label
        print(
            f"{label}, {engine.name} engine, as model {model_id!r} on {url} (Ctrl-C stops)", file=sys.stderr
        )

    return announce


_SIGNALS = (signal.SIGINT, signal.SIGTERM)
