"""What happened in the runs, and by which conventions: the second line under every table."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from statistics import fmean
from typing import Any

from servelib.harness.metrics import send_lag
from servelib.harness.records import RunRecord
from servelib.harness.stats import percentile
from servelib.harness.sweep import Point
from servelib.harness.window import steady_window


def run_facts(points: Sequence[Point]) -> dict[str, Any]:
    """The facts of all runs together, for JSON. Seconds and per second; None where undefined."""
    runs = [run for point in points for run in point.runs]
    records = [record for run in runs for record in run.requests]
    lags = sorted(lag for record in records if (lag := send_lag(record)) is not None)
    rates = [rate for run in runs if (rate := achieved_rate(run)) is not None]
    good = [record for record in records if record.ok]
    closed = points[0].conditions.closed
    return {
        "loop": "closed" if closed else "open",
        "latency_from": "when a caller was free" if closed else "the schedule",
        "percentiles": "linear interpolation",
        "clock": points[0].conditions.clock,
        "trace_hashes": list(dict.fromkeys(run.trace_hash for run in runs)),
        "ok": len(good),
        "failed": len(records) - len(good),
        "achieved_rate": fmean(rates) if rates and len(points) == 1 else None,
        "send_lag_p99": percentile(lags, 0.99),
        "output_as_asked": sum(record.output_tokens == record.requested_tokens for record in records),
        "steady": dict(
            Counter(verdict for p in points for verdict, n in p.summary.steady.items() for _ in range(n))
        ),
        "little_error": max(
            (p.summary.little_error for p in points if p.summary.little_error is not None),
            key=abs,
            default=None,
        ),
    }


def run_line(points: Sequence[Point]) -> str:
    """The facts in one line."""
    facts = run_facts(points)
    hashes, offered = facts["trace_hashes"], facts["ok"] + facts["failed"]
    parts = [
        f"{facts['loop']} loop",
        f"latency from {facts['latency_from']}",
        f"percentiles by {facts['percentiles']}",
        f"trace {hashes[0]}" + (f" and {len(hashes) - 1} more" if len(hashes) > 1 else ""),
        f"{facts['ok']} ok, {facts['failed']} failed",
    ]
    if facts["achieved_rate"] is not None:
        parts.append(f"achieved {facts['achieved_rate']:.4g} requests/s")
    if facts["send_lag_p99"] is not None:
        parts.append(f"send lag p99 {milliseconds(facts['send_lag_p99'])}")
    parts.append(f"output length as asked in {facts['output_as_asked']} of {offered}")
    verdicts = facts["steady"]
    if len(verdicts) == 1:
        parts.append(f"steady state: {next(iter(verdicts))}")
    else:
        parts.append("steady state: " + ", ".join(f"{name} in {n} runs" for name, n in verdicts.items()))
    parts.append(f"{facts['clock']} clock")
    return "Run: " + ", ".join(parts)


def milliseconds(seconds: float) -> str:
    """Three digits are enough, and no power of ten."""
    found = 1e3 * seconds
    return f"{found:.3g} ms" if abs(found) < 999.5 else f"{found:.0f} ms"


def achieved_rate(run: RunRecord) -> float | None:
    """Requests handed over per second, up to the last one; None where all were due at once."""
    if not any(record.scheduled for record in run.requests):
        return None
    sent = [record.sent for record in run.requests if record.sent is not None]
    return len(sent) / max(sent) if sent and max(sent) > 0 else None


def window_facts(run: RunRecord) -> dict[str, Any]:
    """One run's steady window and Little's law, for JSON."""
    window = steady_window(run)
    little = window.little
    return {
        "verdict": window.verdict.value,
        "start": window.start,
        "end": window.end,
        "warmup_requests": window.warmup_requests,
        "output_tokens_per_second": window.output_tokens_per_second,
        "little": None
        if little is None
        else {
            "in_system": little.in_system,
            "arrival_rate": little.arrival_rate,
            "time_in_system": little.time_in_system,
            "error": little.error,
        },
    }
