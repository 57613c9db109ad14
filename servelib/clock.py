"""Time as a part you pass in, so that the same code runs live and in virtual time."""

from __future__ import annotations

import time
from typing import Protocol


class Clock(Protocol):
    """Seconds on one monotonic scale, and a way to wait on it."""

    @property
    def is_virtual(self) -> bool:
        """Whether this clock moves only when a cost is charged to it."""
        ...

    def now(self) -> float:
        """Seconds since an arbitrary, fixed origin."""
        ...

    def sleep_until(self, when: float) -> None:
        """Return no earlier than ``when``; at once if it has passed."""
        ...


class WallClock:
    """The machine's monotonic clock."""

    is_virtual = False

    def now(self) -> float:
        """Seconds on the clock."""
        return time.perf_counter()

    def sleep_until(self, when: float) -> None:
        """Sleep; never wakes early."""
        # time.sleep may return early on some systems; the loop keeps the promise.
        while (left := when - time.perf_counter()) > 0:
            time.sleep(left)


class VirtualClock:
    """A clock that stands still until told to move.

    Waiting jumps; computing costs what ``advance`` is given. A run under it takes no real time and
    gives the same output every time.
    """

    is_virtual = True

    def __init__(self, start: float = 0.0) -> None:
        self._now = start

    def now(self) -> float:
        """Seconds on the clock."""
        return self._now

    def sleep_until(self, when: float) -> None:
        """Jump to ``when``; stand still if it has passed."""
        if when > self._now:
            self._now = when

    def advance(self, seconds: float) -> None:
        """Charge ``seconds`` (>= 0) of work. Raises ``ValueError`` if time would run backwards."""
        if not seconds >= 0.0:
            raise ValueError(f"a clock cannot advance by {seconds!r} s; the cost must be >= 0")
        self._now += seconds
