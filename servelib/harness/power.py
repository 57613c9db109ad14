"""How many repeats a comparison needs: the power of the paired t test. Standard library only."""

from __future__ import annotations

import math
from statistics import NormalDist

from servelib.errors import check_float, check_int
from servelib.harness.stats import CONFIDENCE, t_quantile

MOST_PAIRS = 10_000
STEPS = 400  # of the integral; its error is far below a thousandth


def power(pairs: int, effect: float, confidence: float = CONFIDENCE) -> float:
    """The chance that ``pairs`` runs of each engine show a difference of ``effect``, on either side.

    ``effect`` is the true difference divided by the standard deviation of the differences of pairs.
    The statistic is noncentral t: a normal over the root of a chi-square, integrated over the latter.
    """
    check_int("pairs", pairs, 2)
    check_float("effect", effect, 0.0)
    freedom, shift = pairs - 1, abs(effect) * math.sqrt(pairs)
    t, phi = t_quantile(freedom, confidence), NormalDist().cdf
    # s = sqrt(chi2 / freedom) has density c * s^(f-1) * exp(-f s^2 / 2)
    log_c = math.log(2) + freedom / 2 * math.log(freedom / 2) - math.lgamma(freedom / 2)
    top = 1 + 10 / math.sqrt(2 * freedom)
    total = 0.0
    for i in range(STEPS):
        s = (i + 0.5) * top / STEPS
        density = math.exp(log_c + (freedom - 1) * math.log(s) - freedom * s * s / 2)
        total += density * (phi(shift - t * s) + phi(-shift - t * s))
    return min(1.0, total * top / STEPS)


def pairs_needed(effect: float, wanted: float = 0.9, confidence: float = CONFIDENCE) -> int | None:
    """The fewest pairs with at least the ``wanted`` power; None if that takes more than 10,000."""
    check_float("effect", effect, 0.0, low_open=True)
    check_float("power", wanted, 0.0, 1.0, low_open=True)
    low, high = 1, 2
    while power(high, effect, confidence) < wanted:
        low, high = high, high * 2
        if high > MOST_PAIRS:
            return None
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if power(middle, effect, confidence) < wanted else (low, middle)
    return high
