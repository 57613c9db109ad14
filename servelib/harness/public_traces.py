"""Traces that others have published: when requests came and how long they were. Prompts are drawn.

Times count from the first request. A request with no output failed where it was recorded: it is left
out, and the trace's label says how many. Every other odd line is an error with its number.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from itertools import islice
from pathlib import Path

from servelib.errors import InvalidRequestError
from servelib.harness.arrivals import mean_rate
from servelib.harness.lines import csv_rows, json_objects, number, whole
from servelib.harness.trace import PRINTABLE_ASCII, Trace, TraceRequest, draw_tokens, stream_rng

AZURE = ("TIMESTAMP", "ContextTokens", "GeneratedTokens")
BURSTGPT = ("Timestamp", "Request tokens", "Response tokens")
MOONCAKE = ("timestamp", "input_length", "output_length", "hash_ids")
MOONCAKE_BLOCK = 512  # tokens behind one hash id
TIME_UNITS = {"s": 1.0, "ms": 1e-3, "us": 1e-6}


@dataclass(frozen=True, slots=True)
class Row:
    """One recorded request: where its line is, its time in units of the file, its lengths."""

    where: str
    time: float
    prompt: int
    output: int
    blocks: tuple[int, ...] = ()


def read_azure(path: Path, *, limit: int | None = None, seed: int = 7) -> Trace:
    """Azure's LLM inference traces (2023 and 2024): dates, context and generated tokens."""

    def rows() -> Iterator[Row]:
        for where, row in csv_rows(path, AZURE):
            time, prompt, output = (row[name] for name in AZURE)
            try:
                moment = datetime.fromisoformat(time)
            except ValueError:
                expected = "a date and time such as 2023-11-16 18:15:46.6805900"
                raise InvalidRequestError(f"{where}: TIMESTAMP", time, expected) from None
            if moment.tzinfo is None:
                moment = moment.replace(tzinfo=UTC)
            yield Row(where, moment.timestamp(), *_sizes(where, AZURE[1:], prompt, output))

    return _trace(rows(), "azure", path, 1.0, limit, seed)


def read_burstgpt(path: Path, *, limit: int | None = None, seed: int = 7) -> Trace:
    """BurstGPT, columns as its authors' README names them: seconds, request and response tokens."""

    def rows() -> Iterator[Row]:
        for where, row in csv_rows(path, BURSTGPT):
            time, prompt, output = (row[name] for name in BURSTGPT)
            sizes = _sizes(where, BURSTGPT[1:], prompt, output)
            yield Row(where, number(where, BURSTGPT[0], time), *sizes)

    return _trace(rows(), "burstgpt", path, 1.0, limit, seed)


def read_mooncake(path: Path, *, time_unit: str, limit: int | None = None, seed: int = 7) -> Trace:
    """Mooncake: each hash id stands for 512 tokens, and the same id for the same tokens.

    The files do not say what unit their times have: ``time_unit`` is ``s``, ``ms`` or ``us``.
    """
    if time_unit not in TIME_UNITS:
        raise InvalidRequestError("time unit", time_unit, f"one of {', '.join(TIME_UNITS)}")

    def rows() -> Iterator[Row]:
        for where, row in json_objects(path, MOONCAKE):
            prompt, output = _sizes(where, MOONCAKE[1:3], row["input_length"], row["output_length"])
            needed = -(-prompt // MOONCAKE_BLOCK)
            ids = row["hash_ids"]
            if not isinstance(ids, list) or len(ids) != needed:
                expected = f"a list of {needed}, one for each {MOONCAKE_BLOCK} of {prompt} tokens"
                raise InvalidRequestError(f"{where}: hash_ids", ids, expected)
            blocks = tuple(whole(where, "hash_ids", each, 0) for each in ids)
            yield Row(where, number(where, "timestamp", row["timestamp"]), prompt, output, blocks)

    return _trace(rows(), "mooncake", path, TIME_UNITS[time_unit], limit, seed)


def _sizes(where: str, names: Sequence[str], prompt: object, output: object) -> tuple[int, int]:
    """Prompt and output tokens; a request that failed may have no prompt either."""
    generated = whole(where, names[1], output, 0)
    return whole(where, names[0], prompt, 1 if generated else 0), generated


def _trace(rows: Iterator[Row], kind: str, path: Path, unit: float, limit: int | None, seed: int) -> Trace:
    """Rows as a trace, the first ``limit`` of them."""
    rng = stream_rng(seed, "prompts")
    requests: list[TraceRequest] = []
    start = before = None
    failed = 0
    for row in islice(rows, limit):
        if start is None or before is None:
            start = before = row.time
        if row.time < before:
            raise InvalidRequestError(f"{row.where}: time", row.time, f">= {before}, the line before")
        before = row.time
        if row.output == 0:
            failed += 1
            continue
        if row.blocks:
            ids = [i for block in row.blocks for i in draw_tokens(MOONCAKE_BLOCK, seed, f"block:{block}")]
        else:
            ids = rng.choices(PRINTABLE_ASCII, k=row.prompt)
        time = (row.time - start) * unit
        requests.append(TraceRequest(f"{kind}-{len(requests)}", time, tuple(ids[: row.prompt]), row.output))
    if not requests:
        raise InvalidRequestError(str(path), "no requests", "a trace with at least one")
    label = f"{kind} trace {path.name}" + (f" ({failed} failed left out)" if failed else "")
    sizes = [len(r.prompt_ids) for r in requests]
    outputs = [r.output_tokens for r in requests]
    return Trace(
        tuple(requests),
        label,
        f"{min(sizes)}-{max(sizes)} as recorded",
        f"{min(outputs)}-{max(outputs)} as recorded",
        seed,
        mean_rate([r.scheduled for r in requests]),
    )
