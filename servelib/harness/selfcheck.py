"""The harness measures itself, and says when a run says more about it than about the server.

Over HTTP the harness is alone on its thread. A late send, an event loop that is slow to react, or a
thread near the end of its CPU all move the stamps, so each has a limit. In process, harness and engine
share a thread: an arrival that falls due inside ``step()`` is handed over late, by the engine's doing,
and TTFT counts from the schedule, so nothing is wrong with that. There only what the harness adds is
held against it: the time from when it could have sent (the schedule, or the engine's last return) to
when it did, and its own share of the time. In virtual time there is nothing to check.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from dataclasses import dataclass, field

from servelib.clock import Clock
from servelib.harness.stats import percentile


@dataclass(frozen=True, slots=True)
class Limits:
    """What a run may show of the harness. Seconds, and shares from 0 to 1.

    10 ms is a fifth of the reference objective for a gap; many requests at one moment pass it, as each
    takes about 0.1 ms to send, and their TTFT then holds that. A single-threaded client that is busy four
    fifths of the time queues its own events. A tenth of the time spent in the driver slows the engine
    by as much.
    """

    lag: float = 0.010  # p99 of the lateness of sends that is the harness's own
    loop_lag: float = 0.010  # p99 of the event loop's lateness
    thread_share: float = 0.80  # of one core, for the thread that drives HTTP
    driver_share: float = 0.10  # of the time not idle, for the driver beside an engine


LIMITS = Limits()


@dataclass(frozen=True, slots=True)
class SelfCheck:
    """What one run showed of the harness. ``reasons`` is empty when the run is valid.

    ``cpu_share`` is, over HTTP, the CPU time of the driver's thread over the run's time; in process,
    the driver's own time over the time that neither waited.
    """

    driver: str  # "http" or "in process"
    cpu_share: float
    lag_p50: float | None
    lag_p99: float | None
    loop_lag_p50: float | None = None
    loop_lag_p99: float | None = None
    reasons: tuple[str, ...] = ()

    @property
    def valid(self) -> bool:
        """Whether the harness stayed inside its limits."""
        return not self.reasons


def check(
    driver: str, cpu_share: float, lags: Sequence[float], loop_lags: Sequence[float] | None, limits: Limits
) -> SelfCheck:
    """Judge a run; ``loop_lags`` None means in process."""
    ordered = sorted(lags)
    loop = sorted(loop_lags or ())
    lag, loop_lag = percentile(ordered, 0.99), percentile(loop, 0.99)
    most = limits.driver_share if loop_lags is None else limits.thread_share
    reasons = []
    if lag is not None and lag > limits.lag:
        reasons.append(f"sends late by {1e3 * lag:.1f} ms at p99 (limit {1e3 * limits.lag:g} ms)")
    if loop_lag is not None and loop_lag > limits.loop_lag:
        reasons.append(
            f"event loop late by {1e3 * loop_lag:.1f} ms at p99 (limit {1e3 * limits.loop_lag:g} ms)"
        )
    if cpu_share > most:
        reasons.append(f"harness busy {cpu_share:.0%} of the time (limit {most:.0%})")
    return SelfCheck(
        driver,
        cpu_share,
        percentile(ordered, 0.50),
        lag,
        percentile(loop, 0.50),
        loop_lag,
        tuple(reasons),
    )


@dataclass(slots=True)
class DriverMeter:
    """What the in-process driver notes as it goes: two additions a step.

    ``engine`` and ``idle`` are seconds inside the engine and asleep; ``free`` is when the engine last
    returned, ``lags`` the lateness of each send since the driver could have sent it.
    """

    engine: float = 0.0
    idle: float = 0.0
    free: float = 0.0
    lags: list[float] = field(default_factory=list)

    def verdict(self, wall: float, limits: Limits = LIMITS) -> SelfCheck:
        """The check of a run that took ``wall`` seconds."""
        busy = wall - self.idle
        share = max(0.0, busy - self.engine) / busy if busy > 0 else 0.0
        return check("in process", share, self.lags, None, limits)


class LoopWatch:
    """How late the event loop wakes a timer: what any stamp on that loop may be late by."""

    PERIOD = 0.010

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self.lags: list[float] = []
        self._cpu = 0.0
        self._start = 0.0

    async def run(self) -> None:
        """Watch until cancelled. Started and ended on the thread that is judged."""
        now = self._clock.now
        self._cpu, self._start = time.thread_time(), now()
        while True:
            due = now() + self.PERIOD
            await asyncio.sleep(self.PERIOD)
            self.lags.append(now() - due)

    def share(self) -> float:
        """This thread's CPU time over the time since ``run`` began. On the same thread."""
        wall = self._clock.now() - self._start
        return (time.thread_time() - self._cpu) / wall if wall > 0 else 0.0
