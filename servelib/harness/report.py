"""Results as people and programs read them: a text table, and JSON that leaves nothing out."""

from __future__ import annotations

import json
import os
import tempfile
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from servelib.harness.compat import compat
from servelib.harness.conditions import finite_rate
from servelib.harness.facts import milliseconds, run_facts, run_line, window_facts
from servelib.harness.records import RequestRecord, RunRecord
from servelib.harness.stats import Estimate
from servelib.harness.summary import Summary
from servelib.harness.sweep import Point


@dataclass(frozen=True, slots=True)
class Column:
    """One column of the table: an estimate's name, its heading, and how to show it."""

    name: str
    heading: str
    scale: float = 1.0
    digits: int = 2

    def show(self, estimate: Estimate) -> str:
        """The value, ``-`` where undefined; a star says that it has a note."""
        mark = "*" if estimate.note and estimate.value is not None else ""
        return self._number(estimate.value) + mark

    def show_interval(self, estimate: Estimate) -> str:
        """The interval in brackets, or nothing."""
        if estimate.interval is None:
            return ""
        low, high = estimate.interval
        return f"[{self._number(low)}, {self._number(high)}]"

    def _number(self, value: float | None) -> str:
        return "-" if value is None else f"{value * self.scale:.{self.digits}f}"


COLUMNS = (
    Column("ttft_p50", "TTFT p50 s", 1, 3),
    Column("ttft_p95", "TTFT p95 s", 1, 3),
    Column("ttft_p99", "TTFT p99 s", 1, 3),
    Column("gap_p50", "gap p50 ms", 1e3, 1),
    Column("gap_p99", "gap p99 ms", 1e3, 1),
    Column("output_tokens_per_second", "output tok/s", 1, 1),
    Column("goodput_per_second", "goodput req/s"),
    Column("goodput_fraction", "goodput %", 1e2, 0),
)
"""What a table shows of each rate, beside the rate itself and the counts."""


def text_table(points: Sequence[Point]) -> str:
    """Two lines a rate: the values, and under them their 95 % intervals. Then notes and conditions."""
    rows = [["arrivals", *(column.heading for column in COLUMNS), "completed", "failed"]]
    for point in points:
        estimates, counts = point.summary.estimates(), (point.summary.completed, point.summary.failed)
        rows.append([point.label, *(c.show(estimates[c.name]) for c in COLUMNS), *map(str, counts)])
        intervals = [c.show_interval(estimates[c.name]) for c in COLUMNS]
        if any(intervals):
            rows.append(["", *intervals, "", ""])
    widths = [max(len(row[i]) for row in rows) for i in range(len(rows[0]))]
    lines = [
        "  ".join(cell.rjust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows
    ]
    lines.insert(1, "  ".join("-" * width for width in widths))
    return "\n".join([*lines, *notes(points), conditions_of(points), run_line(points)])


def conditions_of(points: Sequence[Point]) -> str:
    """The conditions line of a table over these points."""
    return points[0].conditions.over(tuple(point.rate for point in points)).line()


def document(points: Sequence[Point]) -> dict[str, Any]:
    """The results of a sweep for JSON: the conditions, and for each rate all that ``bench`` writes."""
    about = points[0].conditions.over(tuple(point.rate for point in points)).to_dict()
    return {
        "conditions": about,
        "points": [{"rate": finite_rate(point.rate), **_body(point)} for point in points],
    }


def point_document(point: Point) -> dict[str, Any]:
    """The results at one rate for JSON: conditions, summary, every record of every run, compat."""
    return {"conditions": point.conditions.to_dict(), **_body(point)}


def to_json(content: dict[str, Any]) -> str:
    """One line of JSON; the same content gives the same bytes. Raises ``ValueError`` on NaN or inf."""
    return json.dumps(content, ensure_ascii=False, allow_nan=False, separators=(", ", ": ")) + "\n"


def check_writable(path: Path) -> None:
    """Raise ``OSError`` now if ``write_text`` could not put a file at ``path`` later."""
    if path.is_dir():
        raise IsADirectoryError(f"{path} is a folder")
    if not path.parent.is_dir():
        raise FileNotFoundError(f"there is no folder {path.parent}")
    if _is_device(path):
        return
    with tempfile.TemporaryFile(dir=path.resolve().parent):
        pass


def write_text(path: Path, text: str) -> None:
    """Write a file whole or not at all: readers see the old one or the new one."""
    if _is_device(path):  # such as /dev/stdout: to be written to, never replaced
        path.write_text(text, encoding="utf-8")
        return
    target = path.resolve()
    draft = target.with_name(f".{target.name}.{os.getpid()}")
    try:
        draft.write_text(text, encoding="utf-8")
        os.replace(draft, target)
    finally:
        draft.unlink(missing_ok=True)


def _is_device(path: Path) -> bool:
    return path.exists() and not path.is_file()


def _body(point: Point) -> dict[str, Any]:
    return {
        "summary": {**_summary(point.summary), "facts": run_facts([point])},
        "runs": [_run(run) for run in point.runs],
        "compat": compat(point),
    }


def _summary(summary: Summary) -> dict[str, Any]:
    found: dict[str, Any] = {
        "offered": summary.offered,
        "completed": summary.completed,
        "failed": summary.failed,
        "failures": summary.failures,
        "interrupted": summary.interrupted,
    }
    estimates = summary.estimates()
    for name, estimate in estimates.items():
        found[name] = estimate.value
        found[f"{name}_interval"] = None if estimate.interval is None else list(estimate.interval)
    found["samples"] = {name: estimate.samples for name, estimate in estimates.items()}
    found["notes"] = {name: estimate.note for name, estimate in estimates.items() if estimate.note}
    return found


def _run(run: RunRecord) -> dict[str, Any]:
    return {
        "seed": run.seed,
        "trace_hash": run.trace_hash,
        "duration": run.duration,
        "interrupted": run.interrupted,
        "window": window_facts(run),
        "self_check": None if run.self_check is None else asdict(run.self_check),
        "records": [_record(record) for record in run.requests],
    }


def _record(record: RequestRecord) -> dict[str, Any]:
    return {
        "request_id": record.request_id,
        "scheduled": record.scheduled,
        "sent": record.sent,
        "events": [list(event) for event in record.events],
        "end": record.end,
        "outcome": None if record.outcome is None else record.outcome.value,
        "error": record.error,
        "prompt_tokens": record.prompt_tokens,
        "requested_tokens": record.requested_tokens,
        "output_tokens": record.output_tokens,
        "tokens_from": record.tokens_from,
        "tokens_note": record.tokens_note,
    }


def notes(points: Sequence[Point]) -> list[str]:
    """What a reader of the table must know besides its numbers, one sentence a line."""
    slo = points[0].conditions
    lines = [f"Goodput counts requests with TTFT <= {slo.slo_ttft:g} s and every gap <= {slo.slo_gap:g} s."]
    if points[0].conditions.runs > 1:
        lines.append("Values are means of the runs; in brackets, Student's 95 % interval across runs.")
    else:
        lines.append(
            "One run; in brackets, 95 % intervals: of order statistics, of batch means for goodput %."
        )
    for column in COLUMNS:
        found = [point.summary.estimates()[column.name] for point in points]
        said = {e.note for e in found if e.note and e.value is not None}  # where there is none, - says it
        lines += [f"* {column.heading.rsplit(' ', 1)[0]}: {note}." for note in sorted(said)]
    failures = [f"{n} {kind} {p.where}" for p in points for kind, n in p.summary.failures.items()]
    if failures:
        lines.append("Failed: " + ", ".join(failures) + ".")
    if any(point.summary.interrupted for point in points):
        lines.append("INTERRUPTED: the last run was stopped early; its numbers are partial.")
    return [*lines, *_about_the_harness(points)]


def _about_the_harness(points: Sequence[Point]) -> list[str]:
    """Runs that say more about the harness than about the server, and token counts to be careful with."""
    checks = [run.self_check for point in points for run in point.runs if run.self_check is not None]
    lines = []
    if checks:
        share, lag = max(c.cpu_share for c in checks), max(c.lag_p99 or 0.0 for c in checks)
        said = f"Harness, at worst: busy {share:.1%} of the time, sends late by {milliseconds(lag)} at p99"
        if loops := [c.loop_lag_p99 for c in checks if c.loop_lag_p99 is not None]:
            said += f", event loop late by {milliseconds(max(loops))} at p99"
        lines.append(f"{said} (all its own doing).")
    for point in points:
        for i, run in enumerate(point.runs, start=1):
            if run.self_check is not None and run.self_check.reasons:
                why = "; ".join(run.self_check.reasons)
                lines.append(f"INVALID: run {i} {point.where}, the harness was too slow: {why}.")
    records = [record for point in points for run in point.runs for record in run.requests]
    notes = [record.tokens_note for record in records if record.tokens_note is not None]
    if notes:
        lines.append(
            f"Token counts of {len(notes)} of {len(records)} requests to be read with care: {notes[0]}."
        )
    return lines
