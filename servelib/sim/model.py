"""A model that computes nothing and charges the clock what computing would have cost."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from servelib.clock import VirtualClock
from servelib.engine.batch import Batch
from servelib.model.config import ModelConfig
from servelib.request import RequestState, SampledToken
from servelib.sim.cost import Cost

TOKEN = ord("a")


class CountingCache:
    """A cache that holds only how many tokens it holds."""

    __slots__ = ("length",)

    def __init__(self) -> None:
        self.length = 0


class CostedModel:
    """Stands in for a model in virtual time: an engine runs on it unchanged.

    Each step advances ``clock`` by ``cost``; every sampled token is the same one, so requests end by
    their token budget. ``caches`` counts those that were made: 0 for an engine that keeps no keys and
    values.
    """

    def __init__(self, config: ModelConfig, cost: Cost, clock: VirtualClock) -> None:
        self.config = config
        self.cost = cost
        self.caches = 0
        self._clock = clock
        self._token = SampledToken(TOKEN % config.vocab_size)

    @property
    def provenance(self) -> str:
        """Where the costs come from."""
        return self.cost.provenance

    def new_cache(self) -> CountingCache:
        """An empty cache for one request."""
        self.caches += 1
        return CountingCache()

    def next_logits(self, ids: Sequence[int], cache: Any | None = None) -> None:
        """Charge one step over the tokens ``ids``, behind what ``cache`` holds."""
        new = len(ids)
        if cache is None:
            self._clock.advance(self.cost.seconds(new, 0))
            return
        self._clock.advance(self.cost.seconds(new, cache.length))
        cache.length += new

    def sample(self, logits: None, state: RequestState) -> SampledToken:
        """The one token."""
        return self._token

    def new_slots(self, slots: int, size: int) -> None:
        """Cache memory for many requests; the batch itself says what each holds."""
        self.caches += 1

    def run(self, batch: Batch, cache: Any) -> None:
        """Charge one step over all rows of ``batch``."""
        self._clock.advance(self.cost.seconds_of(batch.sequences, sampled=batch.sampled))

    def new_padded(self, pads: Sequence[int]) -> CountingCache:
        """An empty cache for a static batch: its rows are equally long, pads included."""
        self.caches += 1
        return CountingCache()

    def run_padded(self, rows: Sequence[Sequence[int]], cache: Any) -> None:
        """Charge one step over all rows, pads like any token."""
        new = len(rows[0])
        self._clock.advance(self.cost.seconds_of([(new, cache.length)] * len(rows)))
        cache.length += new

    def sample_batch(self, logits: None, states: Sequence[RequestState]) -> list[SampledToken]:
        """The one token, for each."""
        return [self._token] * len(states)
