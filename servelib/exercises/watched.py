"""A stand-in model that watches how an engine uses it, for checks of a reader's engine."""

from __future__ import annotations

import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from servelib.exercises.check import Endless, Mistake
from servelib.model.config import ModelConfig
from servelib.model.scripted import SCRIPTED
from servelib.request import RequestState, SampledToken


@dataclass(frozen=True, slots=True)
class Logits:
    """What the watched model gives for logits: the sequence that it has seen."""

    ids: tuple[int, ...]


class WatchedModel:
    """Emits tokens that depend on every token it was shown, and keeps what an engine asked of it.

    ``ends`` maps a request id to the number of its output token that is the end token (1 is the
    first). A wrong use is kept in ``mistake`` as well as raised, so that an engine that catches
    exceptions cannot hide it. ``calls`` holds the sequence behind each run; after ``max_calls`` runs
    the model stops whoever is calling.
    """

    def __init__(
        self,
        ends: Mapping[str, int] | None = None,
        *,
        config: ModelConfig = SCRIPTED,
        max_calls: int = 2000,
    ) -> None:
        self.config = config
        self.calls: list[tuple[int, ...]] = []
        self.told: list[tuple[int, ...]] = []  # the state's own sequence, at each sampling
        self.mistake: Mistake | None = None
        self._ends = ends or {}
        self._max_calls = max_calls

    def new_cache(self) -> list[int]:
        """A cache that remembers the ids it was given."""
        return []

    def next_logits(self, ids: Sequence[int], cache: Any | None = None) -> Logits:
        """Note the run, and hand out what was seen: the cached ids and the new ones."""
        if len(self.calls) >= self._max_calls:
            raise Endless(f"the model was run {self._max_calls} times")
        if not ids:
            self._object("an empty sequence", "tokens to run", "next_logits needs at least one token.")
        seen = (*(cache or ()), *ids)
        if cache is not None:
            cache.extend(ids)
        self.calls.append(seen)
        return Logits(seen)

    def sample(self, logits: Any, state: Any) -> SampledToken:
        """The token that follows the sequence behind ``logits``."""
        if not isinstance(logits, Logits):
            self._object(
                f"sample({logits!r}, ...)",
                "the logits that next_logits returned",
                "You sample before the model has run. Run it first: logits = self.model.next_logits(ids).",
            )
        if not isinstance(state, RequestState):
            self._object(
                f"sample(..., {type(state).__name__})",
                "sample(logits, state) with the request's RequestState",
                "The sampler needs the RequestState that add_request put in the queue.",
            )
        self.told.append(tuple(state.all_ids))
        produced = len(logits.ids) - len(state.request.prompt_ids) + 1
        if produced == self._ends.get(state.request.request_id):
            return SampledToken(self.config.eos_id if isinstance(self.config.eos_id, int) else 0)
        return SampledToken(32 + zlib.crc32(repr(logits.ids).encode()) % 95)

    def _object(self, got: str, expected: str, hint: str) -> None:
        self.mistake = self.mistake or Mistake("watching how your engine uses the model", expected, got, hint)
        raise self.mistake
