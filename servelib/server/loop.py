"""The engine's own thread. Everything else talks to the engine through it.

An engine may be used by one thread at a time, and a step may take long; a web server must never
wait. So one thread owns the engine. Requests and aborts reach it through a queue; outputs go back to
the event loop, one hand-over a step for all of them, and there to each caller's own mailbox.
"""

from __future__ import annotations

import asyncio
import logging
import queue
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from servelib.clock import Clock, WallClock
from servelib.engine.protocol import Engine
from servelib.request import Request, StepOutput
from servelib.server.ledger import Ledger, Outcome
from servelib.server.mailbox import Mailbox
from servelib.server.metrics import Metrics
from servelib.server.settings import ServerSettings

logger = logging.getLogger(__name__)

SHUTTING_DOWN = "the server is shutting down"
AHEAD = 1
"""Steps whose outputs may be with their readers while the engine runs the next. More gain no tokens, and
``/health`` then waits several times as long beside many streams."""


class EngineStoppedError(RuntimeError):
    """The engine no longer serves: it failed, or the server is going down."""


@dataclass(frozen=True, slots=True)
class _Submit:
    requests: tuple[Request, ...]


@dataclass(frozen=True, slots=True)
class _Abort:
    request_id: str


class EngineLoop:
    """Runs an engine in a thread for callers on one event loop.

    ``begin_stop``, ``stop`` and ``failure`` are for any thread, the rest for that event loop. If ``step``
    itself raises, the engine is dead: every mailbox in use raises ``EngineStoppedError``, ``failure`` says
    why, and ``submit`` refuses.
    """

    def __init__(
        self,
        engine: Engine,
        *,
        settings: ServerSettings | None = None,
        clock: Clock | None = None,
        metrics: Metrics | None = None,
    ) -> None:
        settings = settings or ServerSettings()
        self.metrics = metrics or Metrics()
        self._engine = engine
        self._clock = clock or WallClock()
        self._ledger = Ledger(
            max_waiting=settings.max_waiting,
            timeout=settings.request_timeout,
            clock=self._clock,
            observer=self.metrics,
            on_timeout=lambda request_id: self._commands.put(_Abort(request_id)),
        )
        self.metrics.watch(running=lambda: self._ledger.running, waiting=lambda: self._ledger.waiting)
        self._commands: queue.SimpleQueue[_Submit | _Abort | None] = queue.SimpleQueue()
        self._held: set[str] = set()  # what the engine has been given; the engine's thread only
        self._thread: threading.Thread | None = None
        self._event_loop: asyncio.AbstractEventLoop | None = None
        self._lock = threading.Lock()  # so that no command slips in behind the last look at the queue
        self._turns = threading.Semaphore(AHEAD)
        self._closed: str | None = "the engine has not been started"
        self._draining = False

    @property
    def failure(self) -> str | None:
        """Why the engine cannot serve, or None when all is well."""
        return self._closed

    @property
    def not_ready(self) -> str | None:
        """Why a request that came now would be refused (full queue aside), or None."""
        return self._closed or (SHUTTING_DOWN if self._draining else None)

    def start(self) -> None:
        """Start the thread; outputs are delivered on the running event loop."""
        if self._thread is not None:
            raise RuntimeError("this loop was started before; make a new one")
        self._event_loop = asyncio.get_running_loop()
        self._closed = None
        self._thread = threading.Thread(target=self._run, name="servelib-engine", daemon=True)
        self._thread.start()

    def drain(self) -> None:
        """Take no more requests; those in flight go on."""
        self._draining = True

    async def until_idle(self) -> None:
        """Return when no request is in flight."""
        await self._ledger.until_idle()

    def begin_stop(self) -> None:
        """End requests in flight with an error now, and the thread after its step; does not wait."""
        self._draining = True
        self._commands.put(None)
        self._turns.release()  # it may be waiting for readers, and the event loop for it
        self._call_soon(self._end_all, SHUTTING_DOWN)

    def stop(self, timeout: float | None = None) -> None:
        """End requests in flight with an error, then the thread. Waits for the step under way.

        A step that goes on for longer than ``timeout`` seconds is left alone, and the log says so.
        """
        self.begin_stop()
        if self._thread is not None:
            self._thread.join(timeout)
            if self._thread.is_alive():
                logger.error("the engine is still inside a step after %s s; it is left behind", timeout)

    def submit(self, *requests: Request, arrived: float | None = None) -> Mailbox:
        """Queue requests that stand or fall together; their outputs come to one mailbox.

        ``arrived``: when they reached the server, on its clock; now by default. If the engine refuses
        one of them, none is served. The mailbox raises what ``add_request`` raised,
        ``RequestTimeoutError``, or ``EngineStoppedError`` if the engine dies or the server stops before
        the last output. Raises ``EngineStoppedError``, ``QueueFullError`` or ``InvalidRequestError``.
        """
        mailbox = Mailbox(len(requests))
        with self._lock:
            reason = self.not_ready
            if reason is not None:
                raise EngineStoppedError(reason)
            mailbox.lives = self._ledger.admit(requests, mailbox, arrived)
            self._commands.put(_Submit(requests))
        return mailbox

    def abort(self, request_id: str, outcome: Outcome = Outcome.ABORT) -> None:
        """Drop a request before the next step. An unknown or finished id has no effect."""
        if self._ledger.end(request_id, outcome):
            self._commands.put(_Abort(request_id))

    def _run(self) -> None:
        reason = SHUTTING_DOWN
        try:
            while self._take_commands():
                began = self._clock.now()
                outputs = self._engine.step()
                if outputs:
                    self._hand_over(outputs, began, self._clock.now())
        except BaseException as error:  # whatever it is, the engine can no longer be trusted
            logger.exception("the engine died")
            reason = f"the engine died ({type(error).__name__})"
        finally:
            self._close(reason)

    def _take_commands(self) -> bool:
        """Act on all that has come in; with nothing to run, wait. False when told to stop."""
        while True:
            try:
                command = self._commands.get(block=not self._engine.has_work)
            except queue.Empty:
                return True
            if command is None:
                return False
            if isinstance(command, _Abort):
                self._held.discard(command.request_id)
                self._engine.abort(command.request_id)
            else:
                self._add(command.requests)

    def _add(self, requests: tuple[Request, ...]) -> None:
        added: list[str] = []
        try:
            for request in requests:
                self._engine.add_request(request)
                added.append(request.request_id)
        except Exception as error:  # a refusal concerns these requests alone
            for request_id in added:
                self._engine.abort(request_id)
            self._call_soon(self._refuse, requests, error)
        else:
            self._held.update(added)

    def _hand_over(self, outputs: Sequence[StepOutput], began: float, ended: float) -> None:
        # The readers share this interpreter: an engine that never waited for them would starve them.
        self._turns.acquire()
        for output in outputs:
            if output.finish_reason is not None:
                self._held.discard(output.request_id)
        self._call_soon(self._deliver, outputs, began, ended)

    def _close(self, reason: str) -> None:
        """Refuse from now on, and leave neither a caller waiting nor a request in the engine."""
        with self._lock:
            self._closed = reason
        self._call_soon(self._end_all, reason)
        for request_id in self._held:
            try:
                self._engine.abort(request_id)
            except Exception:  # a broken engine may fail here too; the others still get their turn
                logger.exception("abort of %s failed", request_id)
        self._held.clear()

    def _call_soon(self, callback: Callable[..., None], *args: object) -> None:
        if self._event_loop is None:
            return
        try:
            self._event_loop.call_soon_threadsafe(callback, *args)
        except RuntimeError:  # the event loop is closed: nobody is left to read
            logger.debug("the event loop is closed")

    # On the event loop:

    def _deliver(self, outputs: Sequence[StepOutput], began: float, ended: float) -> None:
        self._ledger.deliver(outputs, began, ended)
        # Behind the readers who were just woken: they have had their turn when this one comes.
        asyncio.get_running_loop().call_soon(self._turns.release)

    def _refuse(self, requests: tuple[Request, ...], error: Exception) -> None:
        for request in requests:
            self._ledger.end(request.request_id, Outcome.REFUSED, error)

    def _end_all(self, reason: str) -> None:
        self._ledger.end_all(EngineStoppedError(reason))
