"""The knobs' numbers in words, for the eye and for a screen reader. No widgets here."""

from __future__ import annotations

from servelib.harness.metrics import RunMetrics
from servelib.harness.stats import Estimate
from servelib.harness.summary import Summary
from servelib.notebook.curves import Settings


def describe(settings: Settings, now: RunMetrics) -> str:
    """What virtual time says at the settings' arrival rate."""
    return (
        f"In virtual time, at {settings.rate:.3g} requests/s: "
        f"{_number(now.output_tokens_per_second, '.0f')} output tokens/s, "
        f"TTFT p50 {_number(now.ttft_p50, '.2f')} s, "
        f"{_number(now.goodput_fraction, '.0%')} of the requests meet the SLO."
    )


def describe_measured(settings: Settings, summary: Summary, runs: int) -> str:
    """What the real runs say, with intervals where there were enough of them."""
    failed = f", {summary.failed} of {summary.offered} requests failed" if summary.failed else ""
    return (
        f"Measured on this machine at {settings.rate:.3g} requests/s, {runs} run{'s' if runs > 1 else ''}: "
        f"{_estimate(summary.output_tokens_per_second, '.0f')} output tokens/s, "
        f"TTFT p50 {_estimate(summary.ttft_p50, '.2f')} s, "
        f"{_estimate(summary.goodput_fraction, '.0%')} of the requests meet the SLO{failed}."
    )


def duration(seconds: float) -> str:
    """A waiting time, roughly."""
    return f"{max(1, round(seconds))} s" if seconds < 90 else f"{seconds / 60:.0f} min"


def _number(value: float | None, spec: str) -> str:
    return "undefined" if value is None else format(value, spec).replace("%", " %")


def _estimate(estimate: Estimate, spec: str) -> str:
    text = _number(estimate.value, spec)
    if estimate.interval is not None:
        text += f" [{_number(estimate.interval[0], spec)}, {_number(estimate.interval[1], spec)}]"
    return text
