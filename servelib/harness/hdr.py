"""Latencies as HdrHistogram logs, for the tools that read and merge them (hdrhistogram.github.io)."""

from __future__ import annotations

from collections.abc import Sequence

from hdrh.histogram import HdrHistogram

from servelib.harness.metrics import samples
from servelib.harness.sweep import Point

LOWEST, HIGHEST, DIGITS = 1, 24 * 3600 * 1_000_000, 3  # microseconds: up to a day, to 3 significant digits
KINDS = ("ttft", "gap", "tpot", "e2e", "send_lag")


def hdr_log(points: Sequence[Point]) -> str:
    """One line a run and kind of latency, in microseconds, tagged ``<rate>_<run>_<kind>``.

    A value below 1 microsecond, such as a gap inside a burst, counts as 1; the histograms of a kind can
    be added up. Written by hand because the package's own writer leaves tags and maxima out.
    """
    lines = [
        "#[Histogram log format version 1.2]",
        "#[Values in microseconds; tags are rate_run_kind]",
        '"StartTimestamp","Interval_Length","Interval_Max","Interval_Compressed_Histogram"',
    ]
    for point in points:
        for i, run in enumerate(point.runs, start=1):
            values = samples(run)
            for kind in KINDS:
                seconds: list[float] = getattr(values, kind)
                histogram = HdrHistogram(LOWEST, HIGHEST, DIGITS)
                for value in seconds:
                    histogram.record_value(min(HIGHEST, max(LOWEST, round(1e6 * value))))
                tag, most = f"Tag={point.rate:g}_{i}_{kind}", max(seconds, default=0.0)
                lines.append(f"{tag},0.000,{run.duration:.3f},{most:.6f},{histogram.encode().decode()}")
    return "\n".join(lines) + "\n"
