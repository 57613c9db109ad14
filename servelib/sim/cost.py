"""What one step costs, predicted: a line in the few things a step holds. Standard library only."""

from __future__ import annotations

import json
import math
from collections.abc import Iterable
from dataclasses import dataclass
from importlib.resources import files
from pathlib import Path
from typing import Any, Protocol

from servelib.errors import InvalidRequestError, check_float

Sequences = Iterable[tuple[int, int]]
"""(new tokens, cached tokens) of each sequence in a step."""

COEFFICIENTS = ("overhead", "per_token", "per_pair", "per_cached")


class Cost(Protocol):
    """What a stand-in model asks of a cost: the time of a step, and where its numbers come from."""

    @property
    def provenance(self) -> str:
        """The origin of the numbers, in words."""
        ...

    def seconds(self, new_tokens: int, cached_tokens: int = 0) -> float:
        """The time of a step that runs one sequence's ``new_tokens`` behind ``cached_tokens``."""
        ...

    def seconds_of(self, batch: Sequences, *, sampled: int | None = None) -> float:
        """The time of a step over several sequences at once.

        ``sampled``: after how many tokens one is chosen. None: after the last of each sequence.
        """
        ...


@dataclass(frozen=True, slots=True)
class StepCost:
    """Seconds of one step: a fixed overhead once, and so much for each unit of work of all its sequences.

    ``per_token``: each new token run through the weights. ``per_pair``: each (query, key) pair of
    attention. ``per_cached``: each cached token whose keys and values are read. ``provenance`` says
    in words where the numbers come from. Raises ``InvalidRequestError`` on a negative coefficient.
    """

    overhead: float
    per_token: float = 0.0
    per_pair: float = 0.0
    per_cached: float = 0.0
    provenance: str = ""

    def __post_init__(self) -> None:
        for name in COEFFICIENTS:
            check_float(name, getattr(self, name), 0.0)

    def seconds(self, new_tokens: int, cached_tokens: int = 0) -> float:
        """The time of a step that runs ``new_tokens`` behind ``cached_tokens``."""
        return self._seconds(new_tokens, attention_pairs(new_tokens, cached_tokens), cached_tokens)

    def seconds_of(self, batch: Sequences, *, sampled: int | None = None) -> float:
        """The time of a step over several sequences: the overhead once, the work of all.

        A line does not tell sampled tokens from others. One fitted to single sequences extrapolates
        here: a batch's tokens are charged as a prompt's are, as if they shared one product.
        """
        tokens, pairs, cached = 0, 0.0, 0
        for new, behind in batch:
            tokens += new
            pairs += attention_pairs(new, behind)
            cached += behind
        return self._seconds(tokens, pairs, cached)

    def _seconds(self, tokens: int, pairs: float, cached: int) -> float:
        return self.overhead + self.per_token * tokens + self.per_pair * pairs + self.per_cached * cached


def attention_pairs(new_tokens: int, cached_tokens: int) -> float:
    """How many (query, key) pairs causal attention scores: each new token sees the cache and itself."""
    return new_tokens * cached_tokens + new_tokens * (new_tokens + 1) / 2


def load_cost(path: Path) -> StepCost:
    """Read a cost that ``servelib calibrate`` wrote. Raises ``InvalidRequestError`` on a bad file."""
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise InvalidRequestError("cost file", str(path), f"a readable file ({error})") from error
    return _parse(text, str(path))


def reference_cost() -> StepCost:
    """The stored cost of the reference model, with which virtual runs are the same on any machine.

    Its ``provenance`` says what it was fitted to.
    """
    name = "reference_cost.json"
    return _parse((files("servelib.sim") / name).read_text(encoding="utf-8"), name)


def _parse(text: str, name: str) -> StepCost:
    limit = f"JSON with the numbers {', '.join(COEFFICIENTS)}, as `servelib calibrate --json` writes"
    try:
        data: Any = json.loads(text)
        numbers = {key: data[key] for key in COEFFICIENTS}
        provenance = str(data.get("provenance", f"costs from {Path(name).name}"))
    except (ValueError, TypeError, KeyError, AttributeError) as error:
        raise InvalidRequestError("cost file", name, limit) from error
    cost = StepCost(**numbers, provenance=provenance)
    if not math.fsum(numbers.values()) > 0:
        raise InvalidRequestError(
            "cost file", name, "a cost above 0: steps that take no time measure nothing"
        )
    return cost
