"""Who waits, who runs, and how full the cache is, over time: what a page draws of a run.

Pure functions of a run's records, and of when each request was admitted. Standard library only.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import NamedTuple

from servelib.harness.records import RequestRecord, RunRecord
from servelib.spans import Span, Stage


@dataclass(frozen=True, slots=True)
class Life:
    """One request over time, in seconds since the start of the run; None: it never came so far.

    It waits from ``scheduled`` to ``admitted``, prefills until ``first`` (its first token), and decodes
    until ``end``.
    """

    request_id: str
    scheduled: float
    admitted: float | None
    first: float | None
    end: float | None
    prompt_tokens: int
    events: tuple[tuple[float, int], ...]

    def intervals(self) -> list[tuple[str, float, float]]:
        """Its stages as (name, start, end): ``queued``, ``prefill``, ``decode``, those that it reached."""
        if self.end is None:
            return []
        marks = [
            self.scheduled,
            *(mark for mark in (self.admitted, self.first) if mark is not None),
            self.end,
        ]
        names = ["queued", *(["prefill"] if self.admitted is not None else [])]
        names += ["decode"] if self.first is not None else []
        return list(zip(names, marks[:-1], marks[1:], strict=True))


class Occupied(NamedTuple):
    """How many requests wait and run from ``time`` on, until the next one of these."""

    time: float
    waiting: int
    running: int


class Filled(NamedTuple):
    """What the cache holds from ``time`` on, until the next one of these."""

    time: float
    tokens: int
    bytes: int


def admissions(spans: Iterable[Span]) -> dict[str, float]:
    """When each request left the queue, on the spans' clock: the ends of their QUEUE spans."""
    return {span.request_id: span.end for span in spans if span.stage is Stage.QUEUE}


def lives(run: RunRecord, admitted: Mapping[str, float]) -> list[Life]:
    """Every request of ``run`` in arrival order. ``admitted`` is on the clock the run was on."""
    return [_life(record, admitted.get(record.request_id), run.began) for record in run.requests]


def occupancy(found: Sequence[Life]) -> list[Occupied]:
    """How many wait and run, at each moment at which that changes."""
    changes: dict[float, tuple[int, int]] = {}

    def add(time: float, waiting: int, running: int) -> None:
        before = changes.get(time, (0, 0))
        changes[time] = before[0] + waiting, before[1] + running

    for life in found:
        if life.end is None:
            continue
        add(life.scheduled, 1, 0)
        if life.admitted is None:
            add(life.end, -1, 0)
        else:
            add(life.admitted, -1, 1)
            add(life.end, 0, -1)
    steps, waiting, running = [], 0, 0
    for time in sorted(changes):
        waiting, running = waiting + changes[time][0], running + changes[time][1]
        steps.append(Occupied(time, waiting, running))
    return steps


def cache_fill(found: Sequence[Life], bytes_per_token: int) -> list[Filled]:
    """How many tokens' keys and values are held, at each moment at which that changes.

    A prompt's are counted from its first token on; each later token adds the one before it, which was
    its input; the end gives all back. It is of engines that give each request memory of its own, and
    counts what it holds, not what is set aside for it.
    """
    changes: list[tuple[float, int]] = []  # tokens that come (or go) at a time
    for life in found:
        if life.first is None or life.end is None:
            continue
        held = life.prompt_tokens
        changes.append((life.first, held))
        changes += life.events[1:]
        held += sum(tokens for _, tokens in life.events[1:])
        changes.append((life.end, -held))
    return _summed(changes, bytes_per_token)


def padded_fill(found: Sequence[Life], bytes_per_token: int) -> list[Filled]:
    """As ``cache_fill``, of static batches: pads and finished rows are held too, until the batch ends.

    Whoever was admitted together is one batch.
    """
    batches: dict[float, list[Life]] = {}
    for life in found:
        if life.admitted is not None and life.end is not None:
            batches.setdefault(life.admitted, []).append(life)
    changes: list[tuple[float, int]] = []
    for batch in batches.values():
        steps = sorted({time for life in batch for time, _ in life.events})
        rows, longest = len(batch), max(life.prompt_tokens for life in batch)
        if steps:
            changes.append((steps[0], rows * longest))
            changes += [(time, rows) for time in steps[1:]]
            changes.append((steps[-1], -rows * (longest + len(steps) - 1)))
    return _summed(changes, bytes_per_token)


def _summed(changes: list[tuple[float, int]], bytes_per_token: int) -> list[Filled]:
    changes.sort()
    filled: list[Filled] = []
    tokens = 0
    for (time, added), (later, _) in pairwise([*changes, (math.inf, 0)]):
        tokens += added
        if later != time:
            filled.append(Filled(time, tokens, tokens * bytes_per_token))
    return filled


def _life(record: RequestRecord, admitted: float | None, began: float) -> Life:
    return Life(
        record.request_id,
        record.scheduled,
        None if admitted is None else admitted - began,
        record.events[0][0] if record.events else None,
        record.end,
        record.prompt_tokens,
        tuple(record.events),
    )
