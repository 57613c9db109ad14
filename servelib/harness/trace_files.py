"""Trace files: our own JSON lines, written and read back exactly; and which format a file is in.

The first line names the laws, the seed and the hash of all that follows; then one request a line.
Nothing is lost: a trace that was written has the same hash when it is read.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

from servelib.errors import InvalidRequestError
from servelib.harness.arrivals import Replay, check_rate, mean_rate
from servelib.harness.lines import json_objects, number, numbered_lines, whole
from servelib.harness.public_traces import (
    AZURE,
    BURSTGPT,
    MOONCAKE,
    read_azure,
    read_burstgpt,
    read_mooncake,
)
from servelib.harness.trace import Trace, TraceRequest

HEADER = ("servelib_trace", "arrivals", "prompt", "output", "seed", "rate", "hash")
REQUEST = ("request_id", "scheduled", "prompt_ids", "output_tokens")
VERSION = 1


def trace_text(trace: Trace) -> str:
    """The trace as JSON lines."""
    rate = str(trace.rate) if trace.rate is not None and math.isinf(trace.rate) else trace.rate
    about = (VERSION, trace.arrivals, trace.prompt, trace.output, trace.seed, rate, trace.hash)
    lines: list[dict[str, Any]] = [dict(zip(HEADER, about, strict=True))]
    for r in trace.requests:
        values = (r.request_id, r.scheduled, list(r.prompt_ids), r.output_tokens)
        lines.append(dict(zip(REQUEST, values, strict=True)))
    return "".join(json.dumps(line, allow_nan=False) + "\n" for line in lines)


def read_own(path: Path, *, limit: int | None = None) -> Trace:
    """A trace of ours. Raises ``InvalidRequestError`` with the line, or if its hash does not match."""
    header: dict[str, Any] | None = None
    requests: list[TraceRequest] = []
    for where, found in json_objects(path, ()):
        wanted = HEADER if header is None else REQUEST
        if any(key not in found for key in wanted):
            raise InvalidRequestError(where, found, f"a JSON object with {', '.join(wanted)}")
        if header is None:
            header = found
            whole(where, "servelib_trace", found["servelib_trace"], VERSION)
            continue
        scheduled = number(where, "scheduled", found["scheduled"])
        if requests and scheduled < requests[-1].scheduled:
            limit_text = f">= {requests[-1].scheduled}, the line before"
            raise InvalidRequestError(f"{where}: scheduled", scheduled, limit_text)
        ids = found["prompt_ids"]
        if not isinstance(ids, list) or not ids:
            raise InvalidRequestError(f"{where}: prompt_ids", ids, "a list of token ids")
        requests.append(
            TraceRequest(
                str(found["request_id"]),
                scheduled,
                tuple(whole(where, "prompt_ids", each, 0) for each in ids),
                whole(where, "output_tokens", found["output_tokens"], 1),
            )
        )
    if header is None or not requests:
        raise InvalidRequestError(str(path), "no requests", "a trace with at least one")
    arrivals, prompt, output = (str(header[key]) for key in HEADER[1:4])
    try:
        rate = None if header["rate"] is None else float(header["rate"])
        seed = int(header["seed"])
        if rate is not None and rate != math.inf:
            check_rate("rate", rate)
    except (TypeError, ValueError) as error:  # InvalidRequestError is one
        raise InvalidRequestError(f"{path}:1", header, f"numbers for seed and rate ({error})") from error
    trace = Trace(tuple(requests), arrivals, prompt, output, seed, rate)
    if trace.hash != header["hash"]:
        raise InvalidRequestError(f"{path}: hash", trace.hash, f"{header['hash']}, as its first line says")
    return trace if limit is None else replace(trace, requests=trace.requests[:limit])


def read_trace(
    path: Path, *, time_unit: str | None = None, limit: int | None = None, seed: int = 7
) -> Trace | Replay:
    """A trace in any format we know, found by its first line; or, from a file of times, their law.

    ``time_unit`` is for Mooncake files, which do not say it. ``limit`` takes the first requests,
    ``seed`` draws the prompts that a published trace does not have. Raises ``InvalidRequestError``
    with the file and the line.
    """
    where, first = next(numbered_lines(path), (str(path), ""))
    if first.startswith("{"):
        _, found = next(json_objects(path, ()))
        if "servelib_trace" in found and time_unit is None:
            return read_own(path, limit=limit)
        if all(key in found for key in MOONCAKE):
            if time_unit is None:
                raise InvalidRequestError(str(path), "no time unit", "read with one: s, ms or us")
            return read_mooncake(path, time_unit=time_unit, limit=limit, seed=seed)
    if time_unit is not None:
        raise InvalidRequestError("time unit", time_unit, f"left out: {path.name} is not a Mooncake file")
    readers: tuple[tuple[tuple[str, ...], Callable[..., Trace]], ...] = (
        (AZURE, read_azure),
        (BURSTGPT, read_burstgpt),
    )
    columns = [cell.strip() for cell in first.split(",")]
    for wanted, reader in readers:
        if all(name in columns for name in wanted):
            return reader(path, limit=limit, seed=seed)
    if _is_number(first):
        return read_times(path)
    raise InvalidRequestError(
        where,
        first,
        f"the first line of a trace: ours (servelib_trace), Mooncake ({', '.join(MOONCAKE)}), "
        f"Azure ({','.join(AZURE)}), BurstGPT ({','.join(BURSTGPT)}), or one time in seconds a line",
    )


def read_times(path: Path) -> Replay:
    """Arrival times in seconds, one a line, never falling."""
    times: list[float] = []
    for where, line in numbered_lines(path):
        time = number(where, "time", line)
        if times and time < times[-1]:
            raise InvalidRequestError(f"{where}: time", time, f">= {times[-1]}, the line before")
        times.append(time)
    return Replay(tuple(times), f"replay of {path.name}")


def _is_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True


class FixedTrace:
    """One trace, run after run: what a file replays. Stands where a drawn ``Workload`` would."""

    def __init__(self, trace: Trace, warmup: Callable[[int], Trace]) -> None:
        self._trace = trace
        self.warmup = warmup
        self.rate = mean_rate([r.scheduled for r in trace.requests]) if trace.rate is None else trace.rate

    def trace(self, rate: float, run: int = 0) -> Trace:
        """The trace, whatever the rate and the run."""
        return self._trace
