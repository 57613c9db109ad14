"""When a run has settled: warm-up, steady window, drain; and Little's law over that window.

The warm-up ends where MSER-5 says (White 1997, Simulation 69(6); batches of five as in White, Cobb and
Spratt 2000): the truncation after which the mean of the remaining latencies is known best. The drain
begins at the last arrival, since nothing loads the server after it.

An overloaded run shows twice. Its latencies climb to the end, so the best cut is in the last half
(Hoad, Robinson and Davies 2010 reject such a run). And while requests still come, a backlog grows that
is only served in the drain: lambda W, which counts it all, is above L. The first sign alone is common
in short steady runs by chance, so both are asked for, or a backlog that leaves no doubt. On M/M/1
queues of 500 requests this calls a run at utilisation 0.8 unsteady in about 1 of 200, and one at 1.3
in 98 of 100.
"""

from __future__ import annotations

import enum
import math
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import fmean

from servelib.harness.records import RequestRecord, RunRecord

BATCH = 5
MINIMUM = 100  # served requests; from fewer a cut is an accident
BACKLOG, CLEAR_BACKLOG = 0.05, 0.2  # lambda W over L, minus 1


class Verdict(enum.Enum):
    """Whether a run has a steady state."""

    STEADY = "steady"
    NO_STEADY_STATE = "no steady state"
    TOO_SHORT = "too short to say"


@dataclass(frozen=True, slots=True)
class Little:
    """Both sides of L = lambda W over one window, each measured by itself.

    ``in_system`` is the mean number of requests between their scheduled time and their end (L),
    ``arrival_rate`` lambda, ``time_in_system`` the mean time of those that arrived in it (W).
    """

    in_system: float
    arrival_rate: float
    time_in_system: float

    @property
    def error(self) -> float:
        """lambda W over L, minus 1. An overloaded run leaves its backlog to the drain: far above 0."""
        return self.arrival_rate * self.time_in_system / self.in_system - 1 if self.in_system else 0.0


@dataclass(frozen=True, slots=True)
class Window:
    """The steady part of a run: seconds from ``start`` to ``end``, after ``warmup_requests``.

    Without a steady state it is the whole time in which requests came, and ``verdict`` says so.
    ``output_tokens_per_second`` is of this window; None where it has no length.
    """

    verdict: Verdict
    start: float
    end: float
    warmup_requests: int
    output_tokens_per_second: float | None
    little: Little | None


def steady_window(run: RunRecord) -> Window:
    """The steady window of ``run``, from the time that its served requests took, in arrival order."""
    served = [(r.scheduled, r.end - r.scheduled) for r in run.requests if r.ok and r.end is not None]
    latencies = [latency for _, latency in served]
    end = max((record.scheduled for record in run.requests), default=0.0)
    start, warmup = 0.0, 0
    little = little_law(run.requests, start, end)
    if little is None or len(served) < MINIMUM:
        verdict = Verdict.TOO_SHORT
    elif little.error > CLEAR_BACKLOG or (
        little.error > BACKLOG and mser5(latencies, len(served)) > len(served) / 2
    ):
        verdict = Verdict.NO_STEADY_STATE
    else:
        verdict = Verdict.STEADY
        if cut := mser5(latencies, len(served) // 2):
            start = served[cut][0]
            warmup = sum(record.scheduled < start for record in run.requests)
            little = little_law(run.requests, start, end)
    tokens = sum(n for record in run.requests for time, n in record.events if start < time <= end)
    rate = tokens / (end - start) if end > start else None
    return Window(verdict, start, end, warmup, rate, little)


def mser5(values: Sequence[float], latest: int) -> int:
    """How many of the first values to leave out, at most ``latest``.

    The cut d that makes sum((y - mean)^2) / (n - d)^2 over the batch means behind it smallest. The
    last five batches are never cut into: a few values can lie close by chance.
    """
    batches = [fmean(values[i : i + BATCH]) for i in range(0, len(values) - BATCH + 1, BATCH)]
    best, best_cut = math.inf, 0
    mean = spread = 0.0  # of the batches from the cut on, updated from the back (Welford)
    for kept, cut in enumerate(reversed(range(len(batches))), start=1):
        off = batches[cut] - mean
        mean += off / kept
        spread += off * (batches[cut] - mean)
        if kept >= BATCH and cut * BATCH <= latest and spread / kept**2 <= best:
            best, best_cut = spread / kept**2, cut
    return best_cut * BATCH


def little_law(records: Sequence[RequestRecord], start: float, end: float) -> Little | None:
    """Little's law over [start, end]; None where nothing arrived or the window has no length.

    Requests that never got in, or have no end, take part in neither side.
    """
    # fsum and fmean, not sum: what sum makes of floats changed with Python 3.12.
    spans = [(r.scheduled, r.end) for r in records if r.end is not None and r.sent is not None]
    times = [left - came for came, left in spans if start <= came <= end]
    if not times or end <= start:
        return None
    inside = math.fsum(max(0.0, min(left, end) - max(came, start)) for came, left in spans)
    length = end - start
    return Little(inside / length, len(times) / length, fmean(times))
