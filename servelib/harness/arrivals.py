"""Arrival laws: when requests come. Each draws its whole schedule before the run.

A law makes unit gaps (mean 1) and maps them to time, so that another rate stretches the schedule and
changes nothing else. Nothing is clipped, rescaled to a wished-for end, or summed up as it goes.
Only the standard library's ``random()`` is used, and each law is written out: any machine draws the
same times.
"""

from __future__ import annotations

import math
import random
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import Protocol

from servelib.errors import InvalidRequestError, check_float

SLOWEST, FASTEST = 1e-9, 1e9  # requests/s: beyond them times overflow, or fall together
LEAST_BURSTINESS, MOST_BURSTINESS = 1e-3, 1e6


class Arrivals(Protocol):
    """When requests come. ``label`` is how a conditions line names the law."""

    @property
    def label(self) -> str:
        """The law's name in tables and conditions."""
        ...

    def times(self, n: int, rng: random.Random) -> list[float]:
        """``n`` times in seconds from the start of the run, never falling."""
        ...


@dataclass(frozen=True, slots=True)
class Poisson:
    """Independent arrivals at ``rate`` requests/s: exponential gaps, the first one included.

    Raises ``InvalidRequestError`` on a rate outside ``SLOWEST`` to ``FASTEST``, as every law does.
    """

    rate: float

    def __post_init__(self) -> None:
        check_rate("rate", self.rate)

    @property
    def label(self) -> str:
        """The law's name in tables and conditions."""
        return "poisson"

    def times(self, n: int, rng: random.Random) -> list[float]:
        """``n`` arrival times in seconds."""
        return [unit / self.rate for unit in unit_poisson(n, rng)]


@dataclass(frozen=True, slots=True)
class Gamma:
    """Independent gamma gaps of mean 1/``rate``; ``burstiness`` is their shape.

    The coefficient of variation of a gap is 1/sqrt(burstiness): 1 is Poisson, below 1 comes in
    bursts, above 1 is more even. (``vllm bench serve --burstiness`` means the same.)
    """

    rate: float
    burstiness: float

    def __post_init__(self) -> None:
        check_rate("rate", self.rate)
        check_float("burstiness", self.burstiness, LEAST_BURSTINESS, MOST_BURSTINESS)

    @property
    def label(self) -> str:
        """The law's name in tables and conditions."""
        return f"gamma, burstiness {self.burstiness:g}"

    def times(self, n: int, rng: random.Random) -> list[float]:
        """``n`` arrival times in seconds."""
        scale = self.rate * self.burstiness
        gaps = (_gamma(self.burstiness, rng) for _ in range(n))
        return [unit / scale for unit in accumulate(gaps)]


@dataclass(frozen=True, slots=True)
class Constant:
    """One request every 1/``rate`` seconds, the first after one gap.

    Each time is worked out from its number, so that rounding does not add up to a drift.
    """

    rate: float

    def __post_init__(self) -> None:
        check_rate("rate", self.rate)

    @property
    def label(self) -> str:
        """The law's name in tables and conditions."""
        return "constant"

    def times(self, n: int, rng: random.Random) -> list[float]:
        """``n`` arrival times in seconds."""
        return [(i + 1) / self.rate for i in range(n)]


@dataclass(frozen=True, slots=True)
class AtOnce:
    """Every request at time 0: an infinite rate, for the highest throughput."""

    rate: float = math.inf

    @property
    def label(self) -> str:
        """The law's name in tables and conditions."""
        return "all at once"

    def times(self, n: int, rng: random.Random) -> list[float]:
        """``n`` zeros."""
        return [0.0] * n


@dataclass(frozen=True, slots=True)
class Replay:
    """The times given, as they are. Raises ``InvalidRequestError`` if one is negative or they fall."""

    schedule: tuple[float, ...]
    label: str = "replay"

    @property
    def rate(self) -> float:
        """Arrivals per second up to the last one."""
        return mean_rate(self.schedule)

    def __post_init__(self) -> None:
        before = 0.0
        for time in self.schedule:
            check_float("replayed time", time, before)
            before = time

    def times(self, n: int, rng: random.Random) -> list[float]:
        """The first ``n`` times. Raises ``InvalidRequestError`` if there are fewer: none is made up."""
        if n > len(self.schedule):
            raise InvalidRequestError("requests", n, f"at most {len(self.schedule)}, the times to replay")
        return list(self.schedule[:n])


def check_rate(name: str, rate: object, *, pause: bool = False) -> None:
    """Raise ``InvalidRequestError`` unless a schedule can have ``rate``; 0 only as a ``pause``."""
    if not (pause and rate == 0):
        check_float(name, rate, SLOWEST, FASTEST)


def unit_poisson(n: int, rng: random.Random) -> list[float]:
    """``n`` points of a Poisson process of rate 1: sums of independent exponential gaps."""
    # random() is below 1, so the log is finite.
    return list(accumulate(-math.log(1.0 - rng.random()) for _ in range(n)))


def mean_rate(times: Sequence[float]) -> float:
    """Arrivals per second up to the last one; infinite when all come at time 0."""
    return len(times) / times[-1] if times and times[-1] > 0 else math.inf


def _gamma(shape: float, rng: random.Random) -> float:
    """One gamma variate of scale 1: Marsaglia and Tsang (2000), a cubed normal or another try."""
    if shape < 1.0:  # their section 6: one more than wanted, times a power of a uniform
        return _gamma(shape + 1.0, rng) * math.pow(1.0 - rng.random(), 1.0 / shape)
    d = shape - 1.0 / 3.0
    c = 1.0 / math.sqrt(9.0 * d)
    while True:
        x = math.sqrt(-2.0 * math.log(1.0 - rng.random())) * math.cos(2.0 * math.pi * rng.random())
        v = (1.0 + c * x) ** 3
        if v > 0.0 and math.log(1.0 - rng.random()) < 0.5 * x * x + d - d * v + d * math.log(v):
            return d * v
