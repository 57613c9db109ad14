"""From records to metrics: the definitions of the course, one function each.

Latencies are of the requests that succeeded; failures are counted, and stay in the denominator of
goodput. What is undefined is None, never 0.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from servelib.errors import check_float
from servelib.harness.records import RequestRecord, RunRecord
from servelib.harness.stats import percentile
from servelib.harness.window import Verdict, steady_window


@dataclass(frozen=True, slots=True)
class SLO:
    """A service-level objective: first token within ``ttft`` seconds, every gap within ``gap``.

    Raises ``InvalidRequestError`` unless both are finite and above 0.
    """

    ttft: float = 1.0
    gap: float = 0.05

    def __post_init__(self) -> None:
        check_float("slo ttft", self.ttft, 0.0, low_open=True)
        check_float("slo gap", self.gap, 0.0, low_open=True)


@dataclass(frozen=True, slots=True)
class RunMetrics:
    """One run in numbers. Seconds and per second; None where undefined.

    ``window`` is the run from its start to its last event; every rate divides by it, warm-up and drain
    included. ``output_tokens_per_second_steady`` is of the steady window alone, None where there is
    none; ``steady`` is the verdict, ``little_error`` how far Little's law is off in that window.
    """

    offered: int
    completed: int
    failed: int
    window: float
    ttft_p50: float | None
    ttft_p95: float | None
    ttft_p99: float | None
    gap_p50: float | None
    gap_p99: float | None
    tpot_p50: float | None
    e2e_p50: float | None
    e2e_p99: float | None
    output_tokens_per_second: float | None
    goodput_per_second: float | None
    goodput_fraction: float | None
    send_lag_p50: float | None
    send_lag_p99: float | None
    output_tokens_per_second_steady: float | None
    steady: Verdict
    little_error: float | None


@dataclass(frozen=True, slots=True)
class Samples:
    """The single values of one run, each list in rising order: what its percentiles are taken from."""

    ttft: list[float]
    gap: list[float]
    tpot: list[float]
    e2e: list[float]
    send_lag: list[float]


def ttft(record: RequestRecord) -> float | None:
    """Time to first token: the first event with a token, minus the scheduled time."""
    return record.events[0][0] - record.scheduled if record.events else None


def gaps(record: RequestRecord) -> list[float]:
    """Every time between consecutive tokens. A burst of n tokens is one gap and n - 1 zero gaps.

    The first token's own wait is TTFT, not a gap.
    """
    found: list[float] = []
    before: float | None = None
    for time, tokens in record.events:
        if before is not None:
            found.append(time - before)
        if tokens > 1:
            found.extend([0.0] * (tokens - 1))
        before = time
    return found


def tpot(record: RequestRecord) -> float | None:
    """Time per output token after the first event; None for a single event."""
    if len(record.events) < 2:
        return None
    (first, first_tokens), (last, _) = record.events[0], record.events[-1]
    return (last - first) / (record.output_tokens - first_tokens)


def e2e(record: RequestRecord) -> float | None:
    """End to end: the last token's time minus the scheduled time."""
    return record.events[-1][0] - record.scheduled if record.events else None


def send_lag(record: RequestRecord) -> float | None:
    """The harness's own lateness: handed over minus scheduled."""
    return None if record.sent is None else record.sent - record.scheduled


def meets(record: RequestRecord, slo: SLO) -> bool:
    """Whether the request succeeded, with its first token and every gap in time."""
    first = ttft(record)
    return record.ok and first is not None and first <= slo.ttft and max(gaps(record), default=0.0) <= slo.gap


def samples(run: RunRecord) -> Samples:
    """The single values behind a run's percentiles: latencies of successes, send lag of all sent."""
    good = [record for record in run.requests if record.ok]
    return Samples(
        ttft=_present(ttft(record) for record in good),
        gap=sorted(gap for record in good for gap in gaps(record)),
        tpot=_present(tpot(record) for record in good),
        e2e=_present(e2e(record) for record in good),
        send_lag=_present(send_lag(record) for record in run.requests),
    )


def run_metrics(run: RunRecord, slo: SLO = SLO(), values: Samples | None = None) -> RunMetrics:
    """Everything the summary of one run holds. Pass ``values`` where they are already at hand."""
    values = samples(run) if values is None else values
    offered = len(run.requests)
    completed = sum(record.ok for record in run.requests)
    met = sum(meets(record, slo) for record in run.requests)
    tokens = sum(record.output_tokens for record in run.requests)
    window, settled = run.duration, steady_window(run)
    steady = settled.verdict is Verdict.STEADY
    return RunMetrics(
        offered=offered,
        completed=completed,
        failed=offered - completed,
        window=window,
        ttft_p50=percentile(values.ttft, 0.50),
        ttft_p95=percentile(values.ttft, 0.95),
        ttft_p99=percentile(values.ttft, 0.99),
        gap_p50=percentile(values.gap, 0.50),
        gap_p99=percentile(values.gap, 0.99),
        tpot_p50=percentile(values.tpot, 0.50),
        e2e_p50=percentile(values.e2e, 0.50),
        e2e_p99=percentile(values.e2e, 0.99),
        output_tokens_per_second=tokens / window if window > 0 else None,
        goodput_per_second=met / window if window > 0 else None,
        goodput_fraction=met / offered if offered else None,
        send_lag_p50=percentile(values.send_lag, 0.50),
        send_lag_p99=percentile(values.send_lag, 0.99),
        output_tokens_per_second_steady=settled.output_tokens_per_second if steady else None,
        steady=settled.verdict,
        little_error=None if settled.little is None else settled.little.error,
    )


def _present(values: Iterable[float | None]) -> list[float]:
    return sorted(value for value in values if value is not None)
