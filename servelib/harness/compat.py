"""The same results under the keys of ``vllm bench serve``, so that scripts made for it keep working.

Names, units (milliseconds in the statistics, seconds in the lists) and formulas are that tool's,
with two differences: latencies count from the scheduled time, and what is undefined is null, not 0.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from statistics import fmean
from typing import Any

from servelib.harness.metrics import e2e, gaps, tpot, ttft
from servelib.harness.stats import percentile
from servelib.harness.sweep import Point


def compat(point: Point) -> dict[str, Any]:
    """All runs at one rate as one: requests side by side, durations added up."""
    records = [record for run in point.runs for record in run.requests]
    good = [record for record in records if record.ok]
    duration = math.fsum(run.duration for run in point.runs)
    tokens_in = sum(record.prompt_tokens for record in good)
    tokens_out = sum(record.output_tokens for record in good)

    def rate(count: int) -> float | None:
        return count / duration if duration > 0 else None

    return {
        "date": point.conditions.measured,
        "backend": "servelib",
        "model_id": point.conditions.model,
        "num_prompts": len(records),
        "request_rate": point.rate,
        "max_concurrency": None,
        "duration": duration,
        "completed": len(good),
        "failed": len(records) - len(good),
        "total_input_tokens": tokens_in,
        "total_output_tokens": tokens_out,
        "request_throughput": rate(len(good)),
        "request_goodput": point.summary.goodput_per_second.value,
        "output_throughput": rate(tokens_out),
        "total_token_throughput": rate(tokens_in + tokens_out),
        "input_lens": [record.prompt_tokens for record in records],
        "output_lens": [record.output_tokens if record.ok else 0 for record in records],
        "ttfts": [ttft(record) if record.ok else None for record in records],
        "itls": [gaps(record) if record.ok else [] for record in records],
        "errors": [record.error or "" for record in records],
        **_statistics("ttft", (ttft(record) for record in good)),
        **_statistics("tpot", (tpot(record) for record in good)),
        **_statistics("itl", (gap for record in good for gap in gaps(record))),
        **_statistics("e2el", (e2e(record) for record in good)),
    }


def _statistics(name: str, values: Iterable[float | None]) -> dict[str, float | None]:
    """Mean, median, population standard deviation and p99, in milliseconds."""
    known = sorted(1000.0 * value for value in values if value is not None)
    mean = fmean(known) if known else None
    return {
        f"mean_{name}_ms": mean,
        f"median_{name}_ms": percentile(known, 0.50),
        f"std_{name}_ms": None if mean is None else math.sqrt(fmean((x - mean) ** 2 for x in known)),
        f"p99_{name}_ms": percentile(known, 0.99),
    }
