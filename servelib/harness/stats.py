"""Percentiles and intervals, exact and small. Standard library only: the browser computes the same."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import fmean, stdev

CONFIDENCE = 0.95


@dataclass(frozen=True, slots=True)
class Estimate:
    """A value with its 95 % interval.

    ``value`` None: undefined. ``low`` and ``high`` None: too little to give an interval. ``n`` is
    how many runs define it, ``samples`` how many single values they hold together (requests, gaps),
    and ``note`` says what to be careful about.
    """

    value: float | None
    low: float | None = None
    high: float | None = None
    n: int = 0
    samples: int = 0
    note: str | None = None

    @property
    def interval(self) -> tuple[float, float] | None:
        """(low, high), or None."""
        return None if self.low is None or self.high is None else (self.low, self.high)


def percentile(ordered: Sequence[float], q: float) -> float | None:
    """The ``q`` quantile (0 to 1) of values in rising order, by linear interpolation; None of none."""
    if not ordered:
        return None
    position = q * (len(ordered) - 1)
    below = math.floor(position)
    above = min(below + 1, len(ordered) - 1)
    low, high = ordered[below], ordered[above]
    return low + (high - low) * (position - below)


def minimum_n(q: float, confidence: float = CONFIDENCE) -> int:
    """The fewest samples that bound the ``q`` quantile on both sides: 6 for p50, 72 for p95, 368 for p99.

    With fewer, even the largest sample is not surely above it.
    """
    return math.ceil(math.log((1 - confidence) / 2) / math.log(max(q, 1 - q)))


def percentile_interval(
    ordered: Sequence[float], q: float, confidence: float = CONFIDENCE
) -> tuple[float, float] | None:
    """The samples that enclose the ``q`` quantile whatever the law they come from; None from too few.

    The number of samples below the quantile is binomial(n, q); its tails give the two ranks
    (David and Nagaraja, Order Statistics, 7.1). Samples are taken as independent.
    """
    n, tail = len(ordered), (1 - confidence) / 2
    if n < minimum_n(q, confidence):
        return None
    spread = math.sqrt(n * q * (1 - q))
    k = max(0, math.floor(n * q - 10 * spread - 1))  # below it there is no mass to speak of
    log_ways = math.lgamma(n + 1) - math.lgamma(k + 1) - math.lgamma(n - k + 1)
    mass = math.exp(log_ways + k * math.log(q) + (n - k) * math.log1p(-q))
    below, low_rank = mass, 0  # below = P(at most k samples lie under the quantile)
    while below < 1 - tail and k < n:
        if below <= tail:
            low_rank = k + 1
        mass *= (n - k) / (k + 1) * q / (1 - q)
        k += 1
        below += mass
    return ordered[max(low_rank - 1, 0)], ordered[min(k, n - 1)]


def t_interval(
    values: Sequence[float],
    *,
    lowest: float = -math.inf,
    highest: float = math.inf,
    confidence: float = CONFIDENCE,
) -> tuple[float, float] | None:
    """Student's interval of the mean, cut to the possible range; None from fewer than two values."""
    if len(values) < 2:
        return None
    mean = fmean(values)
    half = t_quantile(len(values) - 1, confidence) * stdev(values) / math.sqrt(len(values))
    return max(lowest, mean - half), min(highest, mean + half)


def unanimous_interval(n: int, all_of_them: bool, confidence: float = CONFIDENCE) -> tuple[float, float]:
    """An interval for a share of which ``n`` samples showed all, or none.

    Clopper and Pearson's (1934) in its closed form: no spread was seen, but with a true share of 1 - 3.7/n
    all ``n`` come out alike in one case of 40. Samples are taken as independent.
    """
    least = ((1 - confidence) / 2) ** (1 / n)
    return (least, 1.0) if all_of_them else (0.0, 1 - least)


def t_quantile(freedom: int, confidence: float = CONFIDENCE) -> float:
    """The t with P(-t < T < t) = ``confidence``, for ``freedom`` >= 1 degrees of freedom."""
    low, high = 0.0, 1.0
    while _t_within(high, freedom) < confidence:
        high *= 2
    while (middle := (low + high) / 2) not in (low, high):
        low, high = (middle, high) if _t_within(middle, freedom) < confidence else (low, middle)
    return high


def _t_within(t: float, freedom: int) -> float:
    """P(-t < T < t): the finite sums of Abramowitz and Stegun, 26.7.3 and 26.7.4."""
    angle = math.atan(t / math.sqrt(freedom))
    cos = math.cos(angle)
    odd = freedom % 2
    term = cos if odd else 1.0
    total = term if freedom > 1 else 0.0
    for k in range(3 if odd else 2, freedom - 1, 2):
        term *= cos * cos * (k - 1) / k
        total += term
    total *= math.sin(angle)
    return 2 / math.pi * (angle + total) if odd else total
