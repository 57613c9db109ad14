"""Capacity: the largest arrival rate at which enough requests meet their objectives, and its interval.

Attainment falls as the rate grows, so its crossing with the target is found by bisection. The same
traces, stretched, are used at every rate, so neighbouring rates differ by the rate alone. The interval
is found the same way: its low end is the largest rate whose whole attainment interval (Student's, over
runs) is above the target, its high end the smallest whose whole interval is below.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field

from servelib.errors import InvalidRequestError, check_float, check_int
from servelib.harness.stats import Estimate

Attain = Callable[[float], Estimate]
"""The attainment at a rate, between 0 and 1, with its interval over runs."""


@dataclass(frozen=True, slots=True)
class Evaluation:
    """What was seen at one rate."""

    rate: float
    attainment: Estimate


@dataclass(frozen=True, slots=True)
class Capacity:
    """The largest rate seen to hold the target, an interval around it, and every evaluation made.

    ``rate.value`` None: it did not hold at any rate tried. A bound is None where no evaluation
    settles it. ``settled`` says whether the search ended before its budget did.
    """

    rate: Estimate
    target: float
    evaluations: tuple[Evaluation, ...]
    settled: bool


@dataclass
class _Search:
    attain: Attain
    target: float
    tolerance: float
    budget: int
    lowest: float
    highest: float
    seen: dict[float, Estimate] = field(default_factory=dict)

    def at(self, rate: float) -> Estimate:
        if rate not in self.seen:
            self.seen[rate] = self.attain(rate)
        return self.seen[rate]

    @property
    def spent(self) -> bool:
        return len(self.seen) >= self.budget

    def crossing(self, holds: Callable[[Estimate], bool], start: float) -> tuple[float, float, bool]:
        """(largest rate that holds, smallest above it that does not, whether they are near enough).

        Begins from what was seen already; 0 and infinity stand for "none yet".
        """
        if not self.seen:
            self.at(start)
        while True:
            fails = min((rate for rate, e in self.seen.items() if not holds(e)), default=math.inf)
            passes = max((rate for rate, e in self.seen.items() if holds(e) and rate < fails), default=0.0)
            if passes and fails / passes <= 1 + self.tolerance:
                return passes, fails, True
            if self.spent:
                return passes, fails, False
            if fails == math.inf:
                if passes >= self.highest:
                    return passes, fails, True
                self.at(min(2 * passes, self.highest))
            elif not passes:
                if fails <= self.lowest:
                    return passes, fails, True
                self.at(max(fails / 2, self.lowest))
            else:
                self.at(math.sqrt(passes * fails))


def find_capacity(
    attain: Attain,
    *,
    target: float = 0.9,
    start: float = 1.0,
    tolerance: float = 0.02,
    max_evaluations: int = 30,
    lowest: float = 1e-3,
    highest: float = 1e6,
) -> Capacity:
    """Bisect ``attain`` for the largest rate with at least ``target``, to ``tolerance`` of itself.

    From ``start`` the rate is doubled or halved until the target lies between two rates. Calls
    ``attain`` at most ``max_evaluations`` times: first for the estimate, then for its interval. Rates
    stay within ``lowest`` to ``highest``. Raises ``InvalidRequestError`` on a bad argument.
    """
    check_float("target", target, 0.0, 1.0, low_open=True)
    check_float("tolerance", tolerance, 0.0, low_open=True)
    check_int("max_evaluations", max_evaluations, 1)
    check_float("lowest", lowest, 0.0, low_open=True)
    check_float("highest", highest, lowest)
    check_float("start", start, lowest, highest)
    search = _Search(attain, target, tolerance, max_evaluations, lowest, highest)

    def holds(seen: Estimate) -> bool:
        if seen.value is None:
            raise InvalidRequestError("attainment", None, "defined at every rate")
        return seen.value >= target

    def surely(seen: Estimate) -> bool:
        return seen.low is not None and seen.low >= target

    def perhaps(seen: Estimate) -> bool:
        return seen.high is None or seen.high >= target

    value, above, near = search.crossing(holds, start)
    low, low_near, high, high_near = 0.0, False, math.inf, False
    if all(seen.interval is not None for seen in search.seen.values()):
        if value:  # else no lower rate is worth a try
            low, _, low_near = search.crossing(surely, start)
        if above < math.inf:
            _, high, high_near = search.crossing(perhaps, start)
    note: str | None
    if above == math.inf:
        note = f"held at the highest rate tried, {value:.4g}/s"
    elif not value:
        note = f"failed at the lowest rate tried, {above:.4g}/s"
    else:
        note = None if near else "the budget ended before the search did"
    estimate = Estimate(
        value or None,
        low or None,
        None if high == math.inf else high,
        n=len(search.seen),
        samples=sum(e.samples for e in search.seen.values()),
        note=note,
    )
    evaluations = tuple(Evaluation(rate, seen) for rate, seen in sorted(search.seen.items()))
    return Capacity(estimate, target, evaluations, near and low_near and high_near)
