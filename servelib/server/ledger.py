"""Who is being served: each request from its arrival to its end, counted exactly once.

All of it happens on the event loop, so no count needs a lock and none can be off by one.
"""

from __future__ import annotations

import asyncio
import enum
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

from servelib.clock import Clock
from servelib.errors import InvalidRequestError
from servelib.request import FinishReason, Request, StepOutput
from servelib.server.mailbox import Mailbox


class Outcome(enum.Enum):
    """How a request ended, as the signals and the log tell it."""

    STOP = "stop"
    LENGTH = "length"
    ABORT = "abort"  # the caller left
    ERROR = "error"  # the engine failed on it, died, or was stopped under it
    TIMEOUT = "timeout"
    REFUSED = "refused"  # the queue was full, or the engine would not have it


_OUTCOMES = {reason: Outcome(reason.value) for reason in FinishReason}


class QueueFullError(RuntimeError):
    """Too many requests wait already. ``retry_after``: whole seconds after which to try again."""

    def __init__(self, limit: int, retry_after: int) -> None:
        self.retry_after = retry_after
        super().__init__(f"the queue is full: {limit} requests are waiting; try again in {retry_after} s")


class RequestTimeoutError(RuntimeError):
    """The request took longer than this server gives one."""

    def __init__(self, seconds: float) -> None:
        super().__init__(
            f"the request was not done within {seconds:g} s of its arrival, this server's limit for one; "
            "ask for fewer tokens, or try again when it is less busy"
        )


@dataclass(slots=True, eq=False)
class Life:
    """One request (one choice) from its arrival to its end. Times on the server's clock.

    ``began`` is when the step began that gave the first token: until then it waits, from then on it
    runs. ``first`` and ``last`` are when the first and the latest token came.
    """

    request: Request
    mailbox: Mailbox
    arrived: float
    timer: asyncio.TimerHandle | None = None
    began: float | None = None
    first: float | None = None
    last: float | None = None
    generated: int = 0
    outcome: Outcome | None = None


class Observer(Protocol):
    """What is told of each life."""

    def started(self, life: Life) -> None:
        """A request came."""
        ...

    def tokens(self, life: Life, count: int, gap: float | None) -> None:
        """``count`` tokens came together, ``gap`` seconds after those before; None for the first."""
        ...

    def finished(self, life: Life) -> None:
        """It is over; ``life.outcome`` says how."""
        ...


class Ledger:
    """The requests that are not over. Event loop only; the sizes may be read from anywhere.

    At most ``max_waiting`` wait for their first token. One that is not over ``timeout`` seconds after
    its arrival ends, and ``on_timeout`` is told its id.
    """

    def __init__(
        self,
        *,
        max_waiting: int,
        timeout: float,
        clock: Clock,
        observer: Observer,
        on_timeout: Callable[[str], None],
    ) -> None:
        self._max_waiting = max_waiting
        self._timeout = timeout
        self._clock = clock
        self._observer = observer
        self._on_timeout = on_timeout
        self._waiting: dict[str, Life] = {}  # in order of arrival
        self._running: dict[str, Life] = {}
        self._idle = asyncio.Event()
        self._idle.set()

    @property
    def waiting(self) -> int:
        """How many have no token yet."""
        return len(self._waiting)

    @property
    def running(self) -> int:
        """How many have a token and are not over."""
        return len(self._running)

    async def until_idle(self) -> None:
        """Return when no request is left."""
        await self._idle.wait()

    def admit(self, requests: Sequence[Request], mailbox: Mailbox, arrived: float | None) -> tuple[Life, ...]:
        """Take all of these requests, or none of them.

        Raises ``QueueFullError``, or ``InvalidRequestError`` for more choices than could ever wait or
        an id that is in use.
        """
        now = self._clock.now()
        arrived = now if arrived is None else arrived
        lives = tuple(Life(request, mailbox, arrived) for request in requests)
        if len(lives) > self._max_waiting:
            raise InvalidRequestError(
                "n", len(lives), f"at most {self._max_waiting}: this server's queue holds no more"
            )
        for request in requests:
            if request.request_id in self._waiting or request.request_id in self._running:
                raise InvalidRequestError("request_id", request.request_id, "not the id of a live request")
        for life in lives:
            self._observer.started(life)
        if len(self._waiting) + len(lives) > self._max_waiting:
            self._close(lives, Outcome.REFUSED)
            # The best forecast there is without a model: how long the one next in line has waited so far.
            oldest = next(iter(self._waiting.values()))
            raise QueueFullError(self._max_waiting, min(60, max(1, math.ceil(now - oldest.arrived))))
        loop = asyncio.get_running_loop()
        left = max(0.0, self._timeout - (now - arrived))
        for life in lives:
            life.timer = loop.call_later(left, self._expire, lives)
            self._waiting[life.request.request_id] = life
        self._idle.clear()
        return lives

    def deliver(self, outputs: Sequence[StepOutput], began: float, ended: float) -> None:
        """Put the outputs of one step where they belong; those of a request that is over go nowhere."""
        for output in outputs:
            request_id = output.request_id
            life = self._running.get(request_id) or self._waiting.get(request_id)
            if life is None:
                continue
            count = len(output.tokens)
            if count:
                gap = None
                if life.last is None:
                    life.began, life.first = began, ended
                    self._running[request_id] = self._waiting.pop(request_id)
                else:
                    gap = ended - life.last
                life.last = ended
                life.generated += count
                self._observer.tokens(life, count, gap)
            life.mailbox.put(output)
            if output.finish_reason is not None:
                self.end(request_id, _OUTCOMES[output.finish_reason])

    def end(self, request_id: str, outcome: Outcome, error: Exception | None = None) -> bool:
        """The request is over; its mailbox is told ``error``, if any. False if it was over before."""
        life = self._running.pop(request_id, None) or self._waiting.pop(request_id, None)
        if life is None:
            return False
        if error is not None:
            life.mailbox.put(error)
        self._close((life,), outcome)
        return True

    def end_all(self, error: Exception) -> None:
        """All of them are over, for a reason that is no fault of theirs."""
        for request_id in [*self._running, *self._waiting]:
            self.end(request_id, Outcome.ERROR, error)

    def _expire(self, lives: Sequence[Life]) -> None:
        for life in lives:  # submitted together: one that is late ends them all
            if self.end(life.request.request_id, Outcome.TIMEOUT, RequestTimeoutError(self._timeout)):
                self._on_timeout(life.request.request_id)

    def _close(self, lives: Sequence[Life], outcome: Outcome) -> None:
        for life in lives:
            life.outcome = outcome
            if life.timer is not None:
                life.timer.cancel()
                life.timer = None
            self._observer.finished(life)
        if not self._waiting and not self._running:
            self._idle.set()
