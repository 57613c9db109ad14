"""The engine's own thread. Everything else talks to the engine through it.

An engine may be used by one thread at a time, and a step may take long; a web server must never
wait. So one thread owns the engine. Requests and aborts reach it through a queue; outputs go back to
each caller's own mailbox, one hand-over a step for all of them.
"""

from __future__ import annotations

import asyncio
import logging
import queue
import threading
from dataclasses import dataclass

from servelib.engine.protocol import Engine
from servelib.request import Request, StepOutput

logger = logging.getLogger(__name__)


class EngineStoppedError(RuntimeError):
    """The engine no longer serves: it failed, or the server is going down."""


class Mailbox:
    """The outputs of requests submitted together, each up to its last one. Belongs to the event loop.

    ``async for outputs in mailbox`` gives lists, never empty: everything that has come since the last
    look, so that a reader who was held up catches up in one turn. It never holds more than the requests
    may generate: a slow reader costs a bounded amount and slows nobody else.
    """

    __slots__ = ("_failure", "_open", "_outputs", "_waiter")

    def __init__(self, requests: int = 1) -> None:
        self._open = requests  # how many have not had their last output taken
        self._outputs: list[StepOutput] = []
        self._failure: Exception | None = None  # raised after the outputs that came before it
        self._waiter: asyncio.Future[None] | None = None

    def put(self, item: StepOutput | Exception) -> None:
        """Add an output, or the reason why there will be none. Event loop only."""
        if isinstance(item, Exception):
            self._failure = item
        else:
            self._outputs.append(item)
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)

    def __aiter__(self) -> Mailbox:
        return self

    async def __anext__(self) -> list[StepOutput]:
        if self._open <= 0:
            raise StopAsyncIteration
        while not self._outputs:
            if self._failure is not None:
                self._open = 0
                raise self._failure
            self._waiter = asyncio.get_running_loop().create_future()
            try:
                await self._waiter
            finally:
                self._waiter = None
        outputs, self._outputs = self._outputs, []
        self._open -= sum(output.finish_reason is not None for output in outputs)
        return outputs


@dataclass(frozen=True, slots=True)
class _Submit:
    requests: tuple[Request, ...]
    mailbox: Mailbox


@dataclass(frozen=True, slots=True)
class _Abort:
    request_id: str


class EngineLoop:
    """Runs an engine in a thread for callers on one event loop.

    ``start`` and ``submit`` are called on that event loop, the rest from anywhere. If ``step`` itself
    raises, the engine is dead: every mailbox in use raises ``EngineStoppedError``, ``failure`` says
    why, and ``submit`` refuses.
    """

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._commands: queue.SimpleQueue[_Submit | _Abort | None] = queue.SimpleQueue()
        self._mailboxes: dict[str, Mailbox] = {}  # of live requests; touched by the engine thread only
        self._thread: threading.Thread | None = None
        self._event_loop: asyncio.AbstractEventLoop | None = None
        self._lock = threading.Lock()  # so that no command slips in behind the last look at the queue
        self._closed: str | None = "the engine has not been started"

    @property
    def failure(self) -> str | None:
        """Why no request can be served now, or None when all is well."""
        return self._closed

    def start(self) -> None:
        """Start the thread; outputs are delivered on the running event loop."""
        if self._thread is not None:
            raise RuntimeError("this loop was started before; make a new one")
        self._event_loop = asyncio.get_running_loop()
        self._closed = None
        self._thread = threading.Thread(target=self._run, name="servelib-engine", daemon=True)
        self._thread.start()

    def begin_stop(self) -> None:
        """Ask the thread to end after the step under way; does not wait. From any thread."""
        self._commands.put(None)

    def stop(self, timeout: float | None = None) -> None:
        """End requests in flight with an error, then the thread. Waits for the step under way.

        Raises ``TimeoutError`` if the thread is still inside a step after ``timeout`` seconds.
        """
        self.begin_stop()
        if self._thread is not None:
            self._thread.join(timeout)
            if self._thread.is_alive():
                raise TimeoutError(f"the engine is still inside a step after {timeout} s")

    def submit(self, *requests: Request) -> Mailbox:
        """Queue requests that stand or fall together; their outputs come to one mailbox.

        If the engine refuses one of them, none is served. The mailbox raises what ``add_request``
        raised, or ``EngineStoppedError`` if the engine dies or the server stops before the last
        output. Raises ``EngineStoppedError``.
        """
        mailbox = Mailbox(len(requests))
        with self._lock:
            if self._closed is not None:
                raise EngineStoppedError(self._closed)
            self._commands.put(_Submit(requests, mailbox))
        return mailbox

    def abort(self, request_id: str) -> None:
        """Drop a request before the next step. An unknown or finished id has no effect."""
        self._commands.put(_Abort(request_id))

    def _run(self) -> None:
        reason = "the server is shutting down"
        try:
            while self._take_commands():
                self._hand_over(self._engine.step())
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
                self._mailboxes.pop(command.request_id, None)
                self._engine.abort(command.request_id)
            else:
                self._add(command.requests, command.mailbox)

    def _add(self, requests: tuple[Request, ...], mailbox: Mailbox) -> None:
        added: list[str] = []
        try:
            for request in requests:
                self._engine.add_request(request)
                added.append(request.request_id)
        except Exception as error:  # a refusal concerns these requests alone
            for request_id in added:
                self._engine.abort(request_id)
            self._deliver([(mailbox, error)])
        else:
            self._mailboxes.update(dict.fromkeys(added, mailbox))

    def _hand_over(self, outputs: list[StepOutput]) -> None:
        mail: list[tuple[Mailbox, StepOutput | Exception]] = []
        for output in outputs:
            mailbox = self._mailboxes.get(output.request_id)
            if mailbox is None:  # aborted meanwhile
                continue
            if output.finish_reason is not None:
                del self._mailboxes[output.request_id]
            mail.append((mailbox, output))
        self._deliver(mail)

    def _deliver(self, mail: list[tuple[Mailbox, StepOutput | Exception]]) -> None:
        if not mail or self._event_loop is None:
            return
        try:
            self._event_loop.call_soon_threadsafe(_put_all, mail)
        except RuntimeError:  # the event loop is closed: nobody is left to read
            logger.warning("%d outputs had no reader", len(mail))

    def _close(self, reason: str) -> None:
        """Refuse from now on, and leave neither a caller waiting nor a request in the engine."""
        with self._lock:
            self._closed = reason
        while not self._commands.empty():
            command = self._commands.get()
            if isinstance(command, _Submit):
                ids = [request.request_id for request in command.requests]
                self._mailboxes.update(dict.fromkeys(ids, command.mailbox))
        live, self._mailboxes = self._mailboxes, {}
        self._deliver([(mailbox, EngineStoppedError(reason)) for mailbox in set(live.values())])
        for request_id in live:
            try:
                self._engine.abort(request_id)
            except Exception:  # a broken engine may fail here too; the others still get their turn
                logger.exception("abort of %s failed", request_id)


def _put_all(mail: list[tuple[Mailbox, StepOutput | Exception]]) -> None:
    for mailbox, item in mail:
        mailbox.put(item)
