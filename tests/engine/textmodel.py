"""A model of text alone, and pools that later chapters bring: what the engine's proofs run on.

``TextModel`` reads its next token off the very ids that its cache holds: whatever loses, shares or mixes
up a place changes tokens. It computes no tensor, so thousands of histories take seconds.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable, Sequence
from typing import Any

from servelib.engine.batch import Batch
from servelib.errors import InvalidRequestError
from servelib.model.config import ModelConfig
from servelib.request import RequestState, SampledToken

SMALL = ModelConfig(label="small", vocab_size=40, width=16, layers=2, heads=4, kv_heads=2, head_size=4,
                    ffn_size=16, context=48, eos_id=7)  # fmt: skip

Text = tuple[int, ...]


class Slots:
    """Cache memory in slots; what a request left behind stays, as in a tensor."""

    def __init__(self, slots: int, size: int) -> None:
        self.rows: list[list[int]] = [[] for _ in range(slots)]
        self.size = size

    def write(self, place: int, start: int, ids: Sequence[int]) -> None:
        row = self.rows[place]
        assert start <= len(row), "what lies before was never computed"
        row[start : start + len(ids)] = ids
        assert len(row) <= self.size

    def read(self, place: int, end: int) -> Text:
        return tuple(self.rows[place][:end])


class Blocks:
    """Cache memory in blocks; a place is a list of blocks."""

    def __init__(self, blocks: int, size: int) -> None:
        self.cells = [-1] * (blocks * size)
        self.size = size

    def _cell(self, place: Sequence[int], position: int) -> int:
        return place[position // self.size] * self.size + position % self.size

    def write(self, place: Sequence[int], start: int, ids: Sequence[int]) -> None:
        for i, token_id in enumerate(ids):
            self.cells[self._cell(place, start + i)] = token_id

    def read(self, place: Sequence[int], end: int) -> Text:
        return tuple(self.cells[self._cell(place, position)] for position in range(end))


class TextModel:
    """Satisfies every engine. ``fails(state)`` may raise when a token of that request is chosen.

    ``breaks`` are ids that no step may hold: a row with one of them makes the whole step raise.
    """

    def __init__(
        self,
        config: ModelConfig = SMALL,
        *,
        fails: Callable[[RequestState], None] = lambda state: None,
        breaks: frozenset[int] = frozenset(),
    ) -> None:
        self.config = config
        self.batches: list[Batch] = []
        self.padded: list[int] = []  # rows of each static step that ran
        self._fails = fails
        self._breaks = breaks

    def new_cache(self) -> list[int]:
        return []

    def next_logits(self, ids: Sequence[int], cache: Any | None = None) -> Text:
        self._check(ids)
        if cache is None:
            return tuple(ids)
        cache.extend(ids)
        return tuple(cache)

    def sample(self, logits: Text, state: RequestState) -> SampledToken:
        self._fails(state)
        drawn = state.seed + len(state.output_ids) if state.request.sampling.temperature else 0
        token_id = zlib.crc32(repr((logits, drawn)).encode()) % self.config.vocab_size
        return SampledToken(token_id, None if state.request.sampling.logprobs is None else -0.5)

    def sample_batch(self, logits: Sequence[Text], states: Sequence[RequestState]) -> list[SampledToken]:
        return [self.sample(*pair) for pair in zip(logits, states, strict=True)]

    def new_slots(self, slots: int, size: int) -> Slots:
        return Slots(slots, size)

    def run(self, batch: Batch, cache: Any) -> list[Text]:
        self.batches.append(batch)
        texts = []
        for row in batch.rows:
            self._check(row.ids)
            cache.write(row.place, row.start, row.ids)
            end = row.start + len(row.ids)
            texts += [cache.read(row.place, end - back) for back in reversed(range(row.samples))]
        return texts

    def new_padded(self, pads: Sequence[int]) -> tuple[list[int], list[list[int]]]:
        return list(pads), [[] for _ in pads]

    def run_padded(self, rows: Sequence[Sequence[int]], cache: Any) -> list[Text]:
        assert len({len(row) for row in rows}) == 1, "rows of unequal length"
        for row in rows:
            self._check(row)
        self.padded.append(len(rows))
        pads, held = cache
        for kept, row in zip(held, rows, strict=True):
            kept.extend(row)
            assert len(kept) <= self.config.context
        return [tuple(kept[pad:]) for pad, kept in zip(pads, held, strict=True)]

    def _check(self, ids: Sequence[int]) -> None:
        if bad := self._breaks & set(ids):
            raise RuntimeError(f"cannot run {sorted(bad)}")


class BlockPool:
    """A little of what chapter 7 brings: blocks, given as a request grows, and refused when none is left."""

    def __init__(self, blocks: int, size: int) -> None:
        self.blocks, self.size = blocks, size
        self._free = list(range(blocks))
        self._held: dict[str, list[int]] = {}

    def check(self, tokens: int) -> None:
        if -(-tokens // self.size) > self.blocks:
            raise InvalidRequestError("tokens", tokens, f"at most {self.blocks * self.size}")

    def admit(self, state: RequestState) -> int | None:
        self._held[state.request.request_id] = []
        return 0

    def grow(self, state: RequestState, tokens: int) -> bool:
        held = self._held[state.request.request_id]
        wanted = -(-tokens // self.size) - len(held)
        if wanted > len(self._free):
            return False
        held += [self._free.pop(0) for _ in range(wanted)]
        return True

    def place(self, state: RequestState) -> tuple[int, ...]:
        return tuple(self._held[state.request.request_id])  # a copy: of the blocks there now

    def release(self, state: RequestState) -> None:
        self._free += self._held.pop(state.request.request_id)

    def check_integrity(self, holders: set[str]) -> None:
        assert set(self._held) == holders
        held = [block for blocks in self._held.values() for block in blocks]
        assert sorted([*self._free, *held]) == list(range(self.blocks)), "a block is lost or shared"


class PrefixPool:
    """A little of what chapter 8 brings: slots whose old text is reused as far as it is the same."""

    def __init__(self, slots: int, size: int) -> None:
        self.size = size
        self.reused = 0
        self.room: dict[str, int] = {}  # tokens that each was last given room for
        self._left: dict[int, list[int]] = {slot: [] for slot in range(slots)}  # free slots, and their text
        self._held: dict[str, int] = {}
        self._slots = slots

    def check(self, tokens: int) -> None:
        if tokens > self.size:
            raise InvalidRequestError("tokens", tokens, f"at most {self.size}")

    def admit(self, state: RequestState) -> int | None:
        if not self._left:
            return None
        ids = state.all_ids

        def common(slot: int) -> int:
            pairs = enumerate(zip(self._left[slot], ids[:-1], strict=False))
            return next((i for i, (a, b) in pairs if a != b), min(len(self._left[slot]), len(ids) - 1))

        best = max(self._left, key=common)
        held = common(best)
        del self._left[best]
        self._held[state.request.request_id] = best
        self.reused += held
        return held

    def grow(self, state: RequestState, tokens: int) -> bool:
        self.room[state.request.request_id] = tokens
        return tokens <= self.size

    def place(self, state: RequestState) -> int:
        return self._held[state.request.request_id]

    def release(self, state: RequestState) -> None:
        self._left[self._held.pop(state.request.request_id)] = state.all_ids[: state.computed]

    def check_integrity(self, holders: set[str]) -> None:
        assert set(self._held) == holders
        assert sorted([*self._left, *self._held.values()]) == list(range(self._slots))
