"""Is B better than A? Paired runs on common traces, and an interval before any word.

Each pair is one trace run on both, so what traffic does to both cancels. An engine that is slower by a
tenth is so on a heavy trace and on a light one, so the judgement is on the ratio B / A (on B - A where
a value is 0): a difference is called one only when its 95 % interval leaves 1 (or 0) out. Two equal
engines are then told apart in 5 % of comparisons, for each metric: of many metrics, one will show
something by chance.
"""

from __future__ import annotations

import enum
import math
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import fmean

from servelib.errors import InvalidRequestError, check_int
from servelib.harness.metrics import SLO, run_metrics
from servelib.harness.records import RunRecord
from servelib.harness.stats import Estimate, t_interval
from servelib.harness.sweep import WARMUP_REQUESTS
from servelib.harness.system import System
from servelib.harness.trace import TraceSource

HIGHER_IS_BETTER = {"output_tokens_per_second", "goodput_per_second", "goodput_fraction"}
COMPARED = (
    "ttft_p50",
    "ttft_p95",
    "ttft_p99",
    "gap_p50",
    "gap_p99",
    "tpot_p50",
    "e2e_p50",
    "e2e_p99",
    "output_tokens_per_second",
    "goodput_per_second",
    "goodput_fraction",
)
ROUNDING = 1e-9  # a difference below this share of the values is how they were added up


class Verdict(enum.Enum):
    """Which is better, as far as the runs can tell."""

    A = "A better"
    B = "B better"
    NOTHING = "nothing can be said"


@dataclass(frozen=True, slots=True)
class Difference:
    """One metric over the pairs: both means, B - A, and B / A (None where one is not above 0).

    ``difference`` holds Student's interval over pairs; ``ratio`` is the geometric mean, its interval
    taken on logarithms. ``pairs`` counts those in which both define the metric.
    """

    metric: str
    a: float | None
    b: float | None
    difference: Estimate
    ratio: Estimate
    pairs: int
    verdict: Verdict


def compare(a: Sequence[RunRecord], b: Sequence[RunRecord], slo: SLO = SLO()) -> list[Difference]:  # noqa: B008
    """Compare runs pair by pair: ``a[i]`` and ``b[i]`` ran the same trace.

    Raises ``InvalidRequestError`` where they did not, or where one was interrupted.
    """
    if len(a) != len(b) or not a:
        raise InvalidRequestError("runs", (len(a), len(b)), "as many of A as of B, at least one")
    for i, (one, two) in enumerate(zip(a, b, strict=True)):
        if one.trace_hash != two.trace_hash:
            raise InvalidRequestError(f"trace of pair {i}", two.trace_hash, f"{one.trace_hash}, as in A")
        if one.interrupted or two.interrupted:
            raise InvalidRequestError(f"run {i}", "interrupted", "whole in both")
    values_a, values_b = [run_metrics(run, slo) for run in a], [run_metrics(run, slo) for run in b]
    return [
        paired(name, [getattr(m, name) for m in values_a], [getattr(m, name) for m in values_b])
        for name in COMPARED
    ]


def paired(metric: str, a: Sequence[float | None], b: Sequence[float | None]) -> Difference:
    """One metric's values on the same traces; a pair in which one is undefined is left out."""
    pairs = [(x, y) for x, y in zip(a, b, strict=True) if x is not None and y is not None]
    if not pairs:
        nothing = Estimate(None, note="undefined in every pair")
        return Difference(metric, None, None, nothing, nothing, 0, Verdict.NOTHING)
    mean_a, mean_b = fmean(x for x, _ in pairs), fmean(y for _, y in pairs)
    note = "one pair; an interval needs two" if len(pairs) == 1 else None
    difference = _estimate([y - x for x, y in pairs], note)
    ratio, logs = Estimate(None, n=len(pairs), note="a value is not above 0"), None
    if all(x > 0 and y > 0 for x, y in pairs):
        logs = _estimate([math.log(y / x) for x, y in pairs], note)
        low, high = (None if bound is None else math.exp(bound) for bound in (logs.low, logs.high))
        ratio = Estimate(math.exp(logs.value or 0.0), low, high, n=len(pairs), note=note)
    verdict = Verdict.NOTHING
    judged, edge = (
        (logs, ROUNDING) if logs is not None else (difference, ROUNDING * max(abs(mean_a), abs(mean_b)))
    )
    if judged.low is not None and judged.high is not None:
        higher = metric in HIGHER_IS_BETTER
        if judged.low > edge:
            verdict = Verdict.B if higher else Verdict.A
        elif judged.high < -edge:
            verdict = Verdict.A if higher else Verdict.B
    return Difference(metric, mean_a, mean_b, difference, ratio, len(pairs), verdict)


def run_pairs(
    a: System,
    b: System,
    workload: TraceSource,
    rate: float,
    *,
    pairs: int = 5,
) -> tuple[list[RunRecord], list[RunRecord]]:
    """Run two systems on common traces, in alternating order: A B, B A, A B, ...

    So a machine that drifts, or the first of a pair finding things cold, favours neither. Each is
    warmed up before, except in virtual time.
    """
    check_int("pairs", pairs, 1)
    for system in (a, b):
        if not system.is_virtual:
            system.session().play(workload.warmup(WARMUP_REQUESTS))
    seen: tuple[list[RunRecord], list[RunRecord]] = ([], [])
    for pair in range(pairs):
        trace = workload.trace(rate, pair)
        for which in (0, 1) if pair % 2 == 0 else (1, 0):
            seen[which].append((a, b)[which].session().play(trace))
    return seen


def _estimate(values: list[float], note: str | None) -> Estimate:
    low, high = t_interval(values) or (None, None)
    return Estimate(fmean(values), low, high, n=len(values), note=note)
