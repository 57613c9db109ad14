"""Results read back from the JSON that ``bench`` and ``sweep`` write."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from servelib.errors import InvalidRequestError
from servelib.harness.records import Outcome, RequestRecord, RunRecord

WORKLOAD = ("arrivals", "prompt", "output", "requests", "slo", "clock")
"""The conditions that two results must share to be compared; traces are compared by their hash."""
SYSTEM = ("model", "engine", "machine", "torch", "cost")
"""The conditions in which they may differ: one of these is what a comparison is about."""


@dataclass(frozen=True, slots=True)
class Result:
    """The runs at one rate, and the conditions of the file."""

    conditions: dict[str, Any]
    rate: float
    runs: list[RunRecord]


def read_results(path: Path) -> list[Result]:
    """Every rate of a file, in its order. Raises ``InvalidRequestError`` if it is not such a file."""
    expected = "JSON that `servelib bench --json` or `servelib sweep --json` wrote"
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
        about = found["conditions"]
        bodies = found["points"] if "points" in found else [{"rate": _one(about["rates"]), **found}]
        missing = [key for key in (*WORKLOAD, *SYSTEM) if key not in about]
        if missing:
            raise KeyError(missing[0])
        return [Result(about, float(body["rate"]), [_run(run) for run in body["runs"]]) for body in bodies]
    except OSError as error:
        raise InvalidRequestError("file", str(path), f"readable ({error.strerror})") from error
    except (ValueError, KeyError, TypeError, AttributeError, IndexError, RecursionError) as error:
        why = f"{type(error).__name__}: {error}"
        raise InvalidRequestError("file", str(path), f"{expected} ({why})") from error


def common_runs(a: Result, b: Result) -> tuple[list[RunRecord], list[RunRecord]]:
    """Whole runs of the same trace, pair by pair, in the order of A.

    Raises ``InvalidRequestError`` that names the first condition in which the workloads differ.
    """
    for name in WORKLOAD:
        if a.conditions[name] != b.conditions[name]:
            raise InvalidRequestError(f"{name} of B", b.conditions[name], f"{a.conditions[name]!r}, as in A")
    if a.rate != b.rate:
        raise InvalidRequestError("rate of B", b.rate, f"{a.rate!r}, as in A")
    left = [run for run in b.runs if not run.interrupted]
    pairs = []
    for run in a.runs:
        match = next((i for i, other in enumerate(left) if other.trace_hash == run.trace_hash), None)
        if match is not None and not run.interrupted:
            pairs.append((run, left.pop(match)))
    if not pairs:
        seen = f"{[run.trace_hash for run in b.runs]} (seeds {[run.seed for run in b.runs]})"
        wanted = f"of a trace of A: {', '.join(run.trace_hash for run in a.runs)}"
        raise InvalidRequestError("whole runs of B", seen, wanted)
    return [one for one, _ in pairs], [two for _, two in pairs]


def differing(a: Result, b: Result) -> dict[str, tuple[Any, Any]]:
    """The conditions of the system in which they differ."""
    pairs = {name: (a.conditions[name], b.conditions[name]) for name in SYSTEM}
    return {name: pair for name, pair in pairs.items() if pair[0] != pair[1]}


def _one(rates: Sequence[Any]) -> Any:
    return rates[0] if rates else math.inf


def _run(found: dict[str, Any]) -> RunRecord:
    records = [_record(record) for record in found["records"]]
    return RunRecord(found["seed"], found["trace_hash"], records, found["duration"], found["interrupted"])


def _record(found: dict[str, Any]) -> RequestRecord:
    return RequestRecord(
        found["request_id"],
        found["scheduled"],
        found["prompt_tokens"],
        found["requested_tokens"],
        sent=found["sent"],
        events=[(time, tokens) for time, tokens in found["events"]],
        end=found["end"],
        outcome=None if found["outcome"] is None else Outcome(found["outcome"]),
        error=found["error"],
    )
