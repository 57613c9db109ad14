"""A stand-in model that emits chosen tokens and computes nothing.

With it, streaming, stopping, aborting and failing are tested exactly, and a server's own overhead
is measured without a model's.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from servelib.engine.batch import Batch
from servelib.model.config import ModelConfig
from servelib.request import RequestState, SampledToken

SCRIPTED = ModelConfig(label="scripted (no computation)", width=2, layers=1, heads=1, kv_heads=1,
                       head_size=2, ffn_size=1, bos_id=256, eos_id=257)  # fmt: skip
"""The smallest config with the reference vocabulary and context."""


class ScriptedModel:
    """Emits ``script``: a list of token ids (its last one repeats), or a function of the state.

    A function may raise, for all or for chosen requests, to test what an engine does then.
    Log-probabilities are 0 (certainty) where they are asked for. What ran is kept as (new tokens,
    cached tokens): every call of ``next_logits`` in ``calls``, and of ``run`` and ``run_padded``, a
    list with an entry for each row, in ``steps``.
    """

    def __init__(
        self,
        script: Sequence[int] | Callable[[RequestState], int],
        config: ModelConfig = SCRIPTED,
    ) -> None:
        self.config = config
        self.calls: list[tuple[int, int]] = []
        self.steps: list[list[tuple[int, int]]] = []
        self._next = script if callable(script) else _reader_of(script)

    def new_cache(self) -> list[int]:
        """A cache that only remembers the ids it was given."""
        return []

    def next_logits(self, ids: Sequence[int], cache: Any | None = None) -> None:
        """Note the call; there is nothing to compute."""
        self.calls.append((len(ids), 0 if cache is None else len(cache)))
        if cache is not None:
            cache.extend(ids)

    def sample(self, logits: None, state: RequestState) -> SampledToken:
        """The next token of the script."""
        token_id = self._next(state)
        if state.request.sampling.logprobs is None:
            return SampledToken(token_id)
        return SampledToken(token_id, 0.0, ((token_id, 0.0),))

    def new_slots(self, slots: int, size: int) -> None:
        """Nothing is stored, so there is no memory to have."""

    def run(self, batch: Batch, cache: Any) -> None:
        """Note the step."""
        self.steps.append(batch.sequences)

    def new_padded(self, pads: Sequence[int]) -> list[int]:
        """A cache that only remembers how many tokens each row holds, pads included."""
        return [0] * len(pads)

    def run_padded(self, rows: Sequence[Sequence[int]], cache: Any) -> None:
        """Note the step."""
        self.steps.append([(len(row), held) for row, held in zip(rows, cache, strict=True)])
        cache[:] = [held + len(row) for row, held in zip(rows, cache, strict=True)]

    def sample_batch(self, logits: None, states: Sequence[RequestState]) -> list[SampledToken]:
        """The next token of each."""
        return [self.sample(None, state) for state in states]


def _reader_of(script: Sequence[int]) -> Callable[[RequestState], int]:
    if not script:
        raise ValueError("script: got an empty list, must hold at least one token id")
    return lambda state: script[min(len(state.output_ids), len(script) - 1)]
