"""Length laws: how many tokens prompts and outputs have. Every length is at least 1, and exact."""

from __future__ import annotations

import math
import random
from dataclasses import dataclass
from pathlib import Path
from statistics import NormalDist
from typing import Protocol

from servelib.errors import InvalidRequestError, check_float, check_int
from servelib.harness.lines import numbered_lines


class Lengths(Protocol):
    """How long prompts or outputs are. ``label`` is how a conditions line names the law."""

    @property
    def label(self) -> str:
        """The law's name in tables and conditions."""
        ...

    @property
    def high(self) -> int:
        """The longest that can come."""
        ...

    def draw(self, n: int, rng: random.Random) -> list[int]:
        """``n`` lengths in tokens, each at least 1."""
        ...


@dataclass(frozen=True, slots=True)
class Uniform:
    """Every length from ``low`` to ``high``, both included, equally likely.

    Raises ``InvalidRequestError`` unless 1 <= low <= high.
    """

    low: int
    high: int

    def __post_init__(self) -> None:
        check_int("length", self.low, 1)
        check_int("length", self.high, self.low)

    @property
    def label(self) -> str:
        """Written ``low-high``; one number where they are the same."""
        return str(self.low) if self.low == self.high else f"{self.low}-{self.high}"

    def draw(self, n: int, rng: random.Random) -> list[int]:
        """``n`` lengths in tokens."""
        return [rng.randint(self.low, self.high) for _ in range(n)]


@dataclass(frozen=True, slots=True)
class Fixed:
    """Always ``length`` tokens."""

    length: int

    def __post_init__(self) -> None:
        check_int("length", self.length, 1)

    @property
    def label(self) -> str:
        """The one length."""
        return str(self.length)

    @property
    def high(self) -> int:
        """The one length."""
        return self.length

    def draw(self, n: int, rng: random.Random) -> list[int]:
        """``n`` times the same."""
        return [self.length] * n


@dataclass(frozen=True, slots=True)
class LogNormal:
    """A log-normal law of ``median`` and ``sigma``, kept within ``low`` to ``high`` by truncation.

    What would fall outside is not moved to the border, where it would pile up: the law is the
    log-normal given that it falls inside. Each length takes one uniform draw through the inverse of
    that law, rounded to the nearest integer. ``median`` and ``sigma`` are those before truncation.
    Raises ``InvalidRequestError`` on a bad value, or bounds that hold less than a millionth.
    """

    median: float
    sigma: float
    low: int
    high: int

    def __post_init__(self) -> None:
        check_float("median", self.median, 0.0, low_open=True)
        check_float("sigma", self.sigma, 0.0, low_open=True)
        check_int("length", self.low, 1)
        check_int("length", self.high, self.low)
        below, above = self._mass()
        if above - below < 1e-6:
            raise InvalidRequestError("length bounds", (self.low, self.high), "nearer the median")

    @property
    def label(self) -> str:
        """Median, sigma and bounds."""
        return f"log-normal (median {self.median:g}, sigma {self.sigma:g}, within {self.low}-{self.high})"

    def draw(self, n: int, rng: random.Random) -> list[int]:
        """``n`` lengths in tokens."""
        law = NormalDist(math.log(self.median), self.sigma)
        below, above = self._mass()
        drawn = []
        for _ in range(n):
            share = below + (above - below) * (1.0 - rng.random())
            value = math.exp(law.inv_cdf(min(max(share, 1e-15), 1 - 1e-15)))
            drawn.append(min(max(round(value), self.low), self.high))  # rounding alone can leave it
        return drawn

    def _mass(self) -> tuple[float, float]:
        law = NormalDist(math.log(self.median), self.sigma)
        return law.cdf(math.log(self.low - 0.5)), law.cdf(math.log(self.high + 0.5))


@dataclass(frozen=True, slots=True)
class Empirical:
    """Lengths drawn, with replacement, from ``values`` that were seen somewhere."""

    values: tuple[int, ...]
    source: str = "given lengths"

    def __post_init__(self) -> None:
        if not self.values:
            raise InvalidRequestError("lengths", self.values, "at least one length")
        for value in self.values:
            check_int("length", value, 1)

    @property
    def label(self) -> str:
        """Where they come from, and how many."""
        return f"drawn from {self.source} ({len(self.values)} lengths)"

    @property
    def high(self) -> int:
        """The longest seen."""
        return max(self.values)

    def draw(self, n: int, rng: random.Random) -> list[int]:
        """``n`` lengths in tokens."""
        return [self.values[int(rng.random() * len(self.values))] for _ in range(n)]


def lengths_from_file(path: Path) -> Empirical:
    """An empirical law from a file of integers, one a line. Raises ``InvalidRequestError``."""
    values = []
    for where, line in numbered_lines(path):
        if not line.isascii() or not line.isdecimal() or int(line) < 1:
            raise InvalidRequestError(where, line, "one length a line, an integer >= 1")
        values.append(int(line))
    if not values:
        raise InvalidRequestError(str(path), "no lengths", "a file with one length a line")
    return Empirical(tuple(values), path.name)
