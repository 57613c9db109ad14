"""The bootstrap: an interval for any statistic of one run, by drawing its values again.

Efron (1979), with blocks for values that depend on their neighbours (Künsch 1989): requests of one
run wait behind each other, so single ones drawn apart would promise too narrow an interval.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence

from servelib.errors import check_int
from servelib.harness.stats import CONFIDENCE, percentile

RESAMPLES = 1000


def bootstrap_interval(
    values: Sequence[float],
    statistic: Callable[[Sequence[float]], float],
    *,
    block: int = 1,
    resamples: int = RESAMPLES,
    seed: int = 0,
    confidence: float = CONFIDENCE,
) -> tuple[float, float] | None:
    """The middle ``confidence`` of ``statistic`` over resampled ``values``; None from fewer than two blocks.

    ``values`` in the order in which they came. Each resample puts runs of ``block`` neighbours,
    drawn with replacement and wrapping round the end, one after another. The same seed gives the same
    interval. Raises ``InvalidRequestError`` on a ``block`` or ``resamples`` below 1.
    """
    check_int("block", block, 1)
    check_int("resamples", resamples, 1)
    n = len(values)
    if n < 2 * block:
        return None
    rng = random.Random(f"{seed}:bootstrap")
    around = [*values, *values[: block - 1]]
    found = []
    for _ in range(resamples):
        if block == 1:
            drawn = rng.choices(values, k=n)
        else:
            starts = [int(rng.random() * n) for _ in range(-(-n // block))]
            drawn = [value for start in starts for value in around[start : start + block]][:n]
        found.append(statistic(drawn))
    found.sort()
    low, high = percentile(found, (1 - confidence) / 2), percentile(found, (1 + confidence) / 2)
    return None if low is None or high is None else (low, high)
