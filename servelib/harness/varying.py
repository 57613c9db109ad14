"""Arrivals whose rate changes over time, drawn exactly.

Take a Poisson process of rate 1 and let the k-th request come when the cumulated rate reaches its
k-th point (Lewis and Shedler 1979; Devroye 1986, VI.1.3). The inverse of the cumulated rate is
written out, so nothing is thinned, and nothing is counted second by second.
"""

from __future__ import annotations

import math
import random
from dataclasses import dataclass

from servelib.errors import InvalidRequestError, check_float
from servelib.harness.arrivals import check_rate, unit_poisson


@dataclass(frozen=True, slots=True)
class Ramp:
    """Poisson arrivals whose rate goes in a straight line from ``start`` to ``end`` over the trace.

    The trace of n requests is expected to take 2n/(start + end) seconds. A request that chance
    brings later than that comes at the rate ``end``: the schedule is never cut.
    """

    start: float
    end: float

    def __post_init__(self) -> None:
        check_rate("ramp start", self.start, pause=True)
        check_rate("ramp end", self.end)

    @property
    def rate(self) -> float:
        """The mean rate over the ramp."""
        return (self.start + self.end) / 2

    @property
    def label(self) -> str:
        """The law's name in tables and conditions."""
        return f"ramp {self.start:g}-{self.end:g}/s"

    def times(self, n: int, rng: random.Random) -> list[float]:
        """``n`` arrival times in seconds."""
        span = n / self.rate
        slope = (self.end - self.start) / span

        def at(unit: float) -> float:
            if unit > n:
                return span + (unit - n) / self.end
            # start*t + slope*t^2/2 = unit, in the form that does not cancel for a small slope
            return 2 * unit / (self.start + math.sqrt(max(self.start**2 + 2 * slope * unit, 0.0)))

        return [at(unit) for unit in unit_poisson(n, rng)]


@dataclass(frozen=True, slots=True)
class Piecewise:
    """Poisson arrivals with one rate after another: ``pieces`` of (requests/s, seconds).

    A rate may be 0, a pause; the last must be above 0, and holds on after its end.
    """

    pieces: tuple[tuple[float, float], ...]

    def __post_init__(self) -> None:
        if not self.pieces:
            raise InvalidRequestError("pieces", self.pieces, "at least one (rate, seconds)")
        for i, (rate, seconds) in enumerate(self.pieces):
            check_rate("piece rate", rate, pause=i < len(self.pieces) - 1)
            check_float("piece seconds", seconds, 0.0, low_open=True)

    @property
    def rate(self) -> float:
        """The mean rate over the pieces."""
        return math.fsum(r * s for r, s in self.pieces) / math.fsum(s for _, s in self.pieces)

    @property
    def label(self) -> str:
        """The law's name in tables and conditions."""
        return "piecewise " + " ".join(f"{rate:g}/s for {seconds:g} s," for rate, seconds in self.pieces)[:-1]

    def times(self, n: int, rng: random.Random) -> list[float]:
        """``n`` arrival times in seconds."""
        times, piece = [], 0
        began, counted = 0.0, 0.0  # where the piece starts, in time and in cumulated rate
        for unit in unit_poisson(n, rng):
            while piece < len(self.pieces) - 1:
                rate, seconds = self.pieces[piece]
                if unit < counted + rate * seconds:
                    break
                began, counted, piece = began + seconds, counted + rate * seconds, piece + 1
            times.append(began + (unit - counted) / self.pieces[piece][0])
        return times
