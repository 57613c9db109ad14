"""Several runs as one: the mean of their values, an interval, and what to be careful about."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from statistics import fmean

from servelib.harness.metrics import SLO, RunMetrics, Samples, meets, run_metrics, samples
from servelib.harness.records import RunRecord
from servelib.harness.stats import Estimate, minimum_n, percentile_interval, t_interval, unanimous_interval

PERCENTILES = {
    "ttft_p50": ("ttft", 0.50),
    "ttft_p95": ("ttft", 0.95),
    "ttft_p99": ("ttft", 0.99),
    "gap_p50": ("gap", 0.50),
    "gap_p99": ("gap", 0.99),
    "tpot_p50": ("tpot", 0.50),
    "e2e_p50": ("e2e", 0.50),
    "e2e_p99": ("e2e", 0.99),
    "send_lag_p50": ("send_lag", 0.50),
    "send_lag_p99": ("send_lag", 0.99),
}
"""The percentile metrics: whose samples, and which quantile."""

RATES = ("output_tokens_per_second", "goodput_per_second", "goodput_fraction")
STRETCHES = 5
STEADY_RATE = "output_tokens_per_second_steady"
ESTIMATES = (*list(PERCENTILES)[:8], *RATES, *list(PERCENTILES)[8:], STEADY_RATE)
"""Every estimate's name, in the order in which files hold them."""


@dataclass(frozen=True, slots=True)
class Summary:
    """What the runs at one rate say together. Counts are over all runs, estimates across them."""

    offered: int
    completed: int
    failed: int
    failures: dict[str, int]  # outcome -> how many
    interrupted: bool
    ttft_p50: Estimate
    ttft_p95: Estimate
    ttft_p99: Estimate
    gap_p50: Estimate
    gap_p99: Estimate
    tpot_p50: Estimate
    e2e_p50: Estimate
    e2e_p99: Estimate
    output_tokens_per_second: Estimate
    goodput_per_second: Estimate
    goodput_fraction: Estimate
    send_lag_p50: Estimate
    send_lag_p99: Estimate
    output_tokens_per_second_steady: Estimate
    steady: dict[str, int]  # verdict -> how many runs
    little_error: float | None  # the largest of the runs, by size

    def estimates(self) -> dict[str, Estimate]:
        """Every estimate by name, in the order of ``ESTIMATES``."""
        return {name: getattr(self, name) for name in ESTIMATES}


def summarise(runs: Sequence[RunRecord], slo: SLO = SLO()) -> Summary:  # noqa: B008 - frozen
    """Mean of the runs' values, with Student's 95 % interval across runs.

    A single run has an order-statistic interval for its percentiles and, for the goodput fraction,
    Student's over the means of five stretches of it (batch means): requests wait behind each other, and
    on queues a bootstrap of single requests, or of blocks, held the truth less often. Its rates per
    second have none: each divides by the run's one window, and how that varies is not to be seen inside
    it. Where every request of every run met the objectives, or none did, the fraction's interval is that
    of so many equal samples. A value that is undefined in a run is left out and said so; a percentile
    from fewer samples than bound it is flagged.
    """
    values = [samples(run) for run in runs]
    metrics = [run_metrics(run, slo, held) for run, held in zip(runs, values, strict=True)]
    outcomes = Counter(r.outcome.value for run in runs for r in run.requests if r.outcome and not r.ok)
    return Summary(
        offered=sum(m.offered for m in metrics),
        completed=sum(m.completed for m in metrics),
        failed=sum(m.failed for m in metrics),
        failures=dict(sorted(outcomes.items())),
        interrupted=any(run.interrupted for run in runs),
        steady=dict(Counter(m.steady.value for m in metrics)),
        little_error=max(
            (m.little_error for m in metrics if m.little_error is not None), key=abs, default=None
        ),
        **{name: _estimate(name, metrics, values) for name in ESTIMATES if name != "goodput_fraction"},
        goodput_fraction=_fraction(runs, metrics, slo),
    )


def _fraction(runs: Sequence[RunRecord], metrics: list[RunMetrics], slo: SLO) -> Estimate:
    found = [m.goodput_fraction for m in metrics if m.goodput_fraction is not None]
    offered = sum(m.offered for m in metrics)
    if not found:
        return Estimate(None, note="undefined in every run")
    share = fmean(found)
    interval: tuple[float, float] | None
    if share in (0.0, 1.0):
        interval = unanimous_interval(offered, share == 1.0)
    elif len(runs) == 1:
        met = [float(meets(record, slo)) for record in runs[0].requests]
        ends = [i * offered // STRETCHES for i in range(STRETCHES + 1)]
        means = [fmean(met[start:end]) for start, end in pairwise(ends)] if offered >= STRETCHES else []
        interval = t_interval(means, lowest=0.0, highest=1.0)
    else:
        interval = t_interval(found, lowest=0.0, highest=1.0)
    low, high = interval or (None, None)
    return Estimate(share, low, high, n=len(found), samples=offered)


def _estimate(name: str, metrics: list[RunMetrics], values: list[Samples]) -> Estimate:
    found = [value for m in metrics if (value := getattr(m, name)) is not None]
    if name not in PERCENTILES:
        offered = sum(m.offered for m in metrics)
        if not found:
            why = "no steady window in any run" if name == STEADY_RATE else "undefined in every run"
            return Estimate(None, samples=offered, note=why)
        interval = t_interval(found, lowest=0.0)
        low, high = interval or (None, None)
        return Estimate(fmean(found), low, high, n=len(found), samples=offered)
    whose, q = PERCENTILES[name]
    lists: list[list[float]] = [getattr(held, whose) for held in values]
    count = sum(map(len, lists))
    if not found:
        return Estimate(None, samples=count, note="undefined in every run")
    notes = []
    if len(found) < len(metrics):
        notes.append(f"undefined in {len(metrics) - len(found)} of {len(metrics)} runs")
    fewest = min(len(ordered) for ordered in lists if ordered)
    if fewest < minimum_n(q):
        seen = "1 sample" if fewest == 1 else f"{fewest} samples"
        notes.append(f"from {seen} a run; p{q * 100:g} needs {minimum_n(q)}")
    interval = percentile_interval(lists[0], q) if len(metrics) == 1 else t_interval(found, lowest=0.0)
    low, high = interval or (None, None)
    return Estimate(fmean(found), low, high, n=len(found), samples=count, note="; ".join(notes) or None)
