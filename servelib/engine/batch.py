"""What one step runs: an explicit list of rows, one for each request that takes part.

The scheduler makes it, the model runs it, the scheduler takes its tokens back. Nothing has to be
inferred: which tokens run, where they stand, and after which of them a token is chosen, is said.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from servelib.request import RequestState
from servelib.spans import Stage


@dataclass(frozen=True, slots=True)
class Row:
    """One request's part of a step.

    ``ids`` run at positions ``start``, ``start + 1``, ...; what lies before ``start`` is in the cache
    at ``place`` (a slot number, later a list of blocks: the cache knows, the engine does not ask).
    ``samples`` is after how many of the last ids a token is chosen: none for a piece of a prompt that
    is not its end, one for plain decoding, several to verify guessed tokens.
    """

    state: RequestState
    place: Any
    start: int
    ids: Sequence[int]
    samples: int
    stage: Stage

    @property
    def request_id(self) -> str:
        """Whose row it is."""
        return self.state.request.request_id


@dataclass(frozen=True, slots=True)
class Batch:
    """The rows of one step, in the order in which their requests joined."""

    rows: tuple[Row, ...]

    @property
    def tokens(self) -> int:
        """How many tokens run."""
        return sum(len(row.ids) for row in self.rows)

    @property
    def sampled(self) -> int:
        """After how many of them a token is chosen."""
        return sum(row.samples for row in self.rows)

    @property
    def sequences(self) -> list[tuple[int, int]]:
        """(new tokens, cached tokens) of each row: what a cost model asks."""
        return [(len(row.ids), row.start) for row in self.rows]
