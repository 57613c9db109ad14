"""The same results under the keys of ``vllm bench serve``, so that scripts made for it keep working.

Names, units (milliseconds in the statistics, seconds in the lists) and formulas are that tool's, read
from its version of 2026 (vllm/benchmarks/serve.py), with these differences: latencies count from the
scheduled time, what is undefined is null and not 0, a burst of n tokens has n - 1 gaps of 0, and
texts are not kept.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable
from statistics import fmean
from typing import Any

from servelib.harness.conditions import callers_of, finite_rate
from servelib.harness.metrics import e2e, gaps, send_lag, tpot, ttft
from servelib.harness.records import RunRecord
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
        "endpoint_type": "servelib",
        "label": None,
        "model_id": point.conditions.model,
        "tokenizer_id": None,
        "num_prompts": len(records),
        "request_rate": finite_rate(point.rate),
        "burstiness": _burstiness(point.conditions.arrivals),
        "max_concurrency": callers_of(point.conditions.arrivals),
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
        "latencies": [e2e(record) if record.ok else None for record in records],
        "start_times": [record.sent for record in records],
        "queue_times": [send_lag(record) for record in records],
        "generated_texts": ["" for _ in records],
        "errors": [record.error or "" for record in records],
        "max_output_tokens_per_s": max((_busiest_second(run) for run in point.runs), default=0),
        "max_concurrent_requests": max((_most_at_once(run) for run in point.runs), default=0),
        "rtfx": 0.0,
        **_statistics("ttft", (ttft(record) for record in good)),
        **_statistics("tpot", (tpot(record) for record in good)),
        **_statistics("itl", (gap for record in good for gap in gaps(record))),
        **_statistics("e2el", (e2e(record) for record in good)),
    }


def _burstiness(arrivals: str) -> float | None:
    """The shape of a gamma law, of which Poisson is one; None of every other law."""
    shape = "1" if arrivals == "poisson" else arrivals.partition("burstiness ")[2]
    return float(shape) if shape else None


def _busiest_second(run: RunRecord) -> int:
    """Tokens of successes in the fullest second, counted from the first send."""
    good = [record for record in run.requests if record.ok and record.sent is not None]
    first = min((record.sent or 0.0 for record in good), default=0.0)
    seconds: Counter[int] = Counter()
    for record in good:
        for time, tokens in record.events:
            seconds[int(time - first)] += tokens
    return max(seconds.values(), default=0)


def _most_at_once(run: RunRecord) -> int:
    """The most successes in flight together; one that ends as another begins does not overlap it."""
    moves: list[tuple[float, int]] = []
    for record in run.requests:
        if record.ok and record.sent is not None and record.events:
            moves += [(record.sent, 1), (record.events[-1][0], -1)]
    most = now = 0
    for _, move in sorted(moves):
        now += move
        most = max(most, now)
    return most


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
