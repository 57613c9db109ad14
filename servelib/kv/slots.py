"""The KV cache of a batch: fixed slots of equal size, one for each request that runs.

Which request is in which slot, and how far it has come, is said by the rows of each batch; the scheduler
and its pool know. A slot is never emptied: a row reads no further than its own newest token.
"""

from __future__ import annotations

from itertools import chain

import torch
from torch import Tensor

from servelib.engine.batch import Batch, Row
from servelib.model.attention import additive, causal_attention, masked_attention
from servelib.model.config import ModelConfig

AHEAD = 64
"""Tokens of a slot that are cleaned at a time, so that few steps have to."""


class SlotKV:
    """Memory for the keys and values of ``slots`` requests of up to ``size`` tokens each."""

    def __init__(
        self,
        config: ModelConfig,
        slots: int,
        size: int,
        *,
        dtype: torch.dtype = torch.float32,
        device: torch.device | str = "cpu",
    ) -> None:
        self.slots, self.size = slots, min(size, config.context)
        # [K or V, layer, slot, KV, size, D], as the memory was: most of it nobody ever reads.
        shape = (2, config.layers, slots, config.kv_heads, self.size, config.head_size)
        self._store = torch.empty(shape, dtype=dtype, device=device)
        self._clean = [0] * slots  # how far each slot holds what its tenant wrote, or zeros

    @property
    def nbytes(self) -> int:
        """Bytes held, idle ones included."""
        return self._store.nbytes

    def view(self, batch: Batch) -> SlotView:
        """The memory as one step sees it: the cache that the model gets for the row of all its tokens.

        Raises ``ValueError`` for a row that passes the end of its slot.
        """
        for row in batch.rows:
            end = check_fits(row, self.size)
            if row.start == 0:  # a new tenant
                self._clean[row.place] = 0
            if len(row.ids) > 1:  # reads what it wrote, no further
                self._clean[row.place] = max(self._clean[row.place], end)
        decodes = [row for row in batch.rows if len(row.ids) == 1]
        longest = max((row.start + 1 for row in decodes), default=0)
        for row in decodes:
            self._clean_up_to(longest, row.place)
        return SlotView(self._store, batch.rows)

    def _clean_up_to(self, end: int, slot: int) -> None:
        """Zeros where a decode reads past its own tokens: masked, yet 0 times an old NaN is a NaN."""
        clean = self._clean[slot]
        if clean < end:
            self._clean[slot] = min(end + AHEAD, self.size)
            self._store[:, :, slot, :, clean : self._clean[slot]] = 0


def check_fits(row: Row, size: int) -> int:
    """How many tokens the row's slot then holds. Raises ``ValueError`` where that is more than ``size``."""
    end = row.start + len(row.ids)
    if end > size:
        raise ValueError(
            f"request {row.request_id}: {end} tokens, must be at most {size}: a slot; "
            "shorten the prompt, generate fewer tokens, or make larger slots"
        )
    return end


class SlotView:
    """One step's tokens, each in its slot: a ``KVCache`` for the model, good for this step only.

    Rows of one token (decodes) share one attention over the slots in use: a view, nothing is copied.
    The pool gives the lowest slots first, so few are read in vain. Every longer row (a prompt, a piece
    of one, guesses to verify) has an attention of its own.
    """

    def __init__(self, store: Tensor, rows: tuple[Row, ...]) -> None:
        self._store = store
        slots: list[int] = []  # of each token of the flat row
        positions: list[int] = []  # of each token in its own sequence
        decodes: list[int] = []  # which tokens are rows of their own
        lengths: dict[int, int] = {}  # by slot: how many tokens such a row sees
        self._longer: list[tuple[slice, slice, int]] = []  # the other rows: tokens, slot, and tokens seen
        for row in rows:
            first, end = len(slots), row.start + len(row.ids)
            slots += [row.place] * len(row.ids)
            positions += range(row.start, end)
            if len(row.ids) == 1:
                decodes.append(first)
                lengths[row.place] = end
            else:
                self._longer.append((slice(first, len(slots)), slice(row.place, row.place + 1), end))
        used = range(max(lengths, default=-1) + 1)  # all slots up to the last that decodes
        reach = [lengths.get(slot, 1) for slot in used]  # a slot that does not decode: anything but nothing
        longest = max(lengths.values(), default=0)

        numbers = [slots, positions, decodes, list(lengths), reach]
        sizes = [len(part) for part in numbers]  # one transfer to the device for all of them
        moved = torch.tensor(list(chain(*numbers)), dtype=torch.long, device=store.device)
        in_slot, self._positions, self._decodes, self._slots, seen = torch.split(moved, sizes)
        # Where in one layer's memory, taken as rows of D numbers, each head of each token goes.
        _, _, _, kv, size, _ = store.shape
        heads = torch.arange(kv, device=store.device)[:, None]
        self._at = ((in_slot * kv + heads) * size + self._positions).flatten()  # [KV * N]
        mask = additive(torch.arange(longest, device=store.device) < seen[:, None], store.dtype)  # [U, S]
        self._mask = mask[:, None, None]

    def positions(self, new: int) -> Tensor:
        """Where each token of the flat row stands in its own sequence, [N]."""
        return self._positions

    def attend(self, layer: int, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        """Store one layer's new keys and values, each in its slot; attend over each row's own.

        ``q``: [1, H, N, D]; ``k``, ``v``: [1, KV, N, D], N the tokens of all rows. Returns [1, H, N, D].
        """
        keys, values = self._store[0, layer], self._store[1, layer]  # [slots, KV, size, D]
        head_size = q.shape[-1]
        keys.view(-1, head_size).index_copy_(0, self._at, k.reshape(-1, head_size))
        values.view(-1, head_size).index_copy_(0, self._at, v.reshape(-1, head_size))
        if not self._longer:  # the usual step: nothing to pick apart
            return self._decode(q[0], keys, values)[None]
        out = torch.empty_like(q)
        if len(self._decodes):
            out[0, :, self._decodes] = self._decode(q[0, :, self._decodes], keys, values)
        for tokens, slot, end in self._longer:
            held = slot, slice(None), slice(end)
            out[:, :, tokens] = causal_attention(q[:, :, tokens], keys[held], values[held])
        return out

    def advance(self, new: int) -> None:
        """Nothing to count: the next batch says where its rows start."""

    def _decode(self, q: Tensor, keys: Tensor, values: Tensor) -> Tensor:
        """The rows of one token: [H, M, D] -> [H, M, D]."""
        used, _, _, longest = self._mask.shape
        # By slot, so that the keys can stay where they are. Slots without a query compute in vain.
        queries = q.new_zeros(used, len(q), q.shape[-1]).index_copy_(0, self._slots, q.transpose(0, 1))
        held = slice(used), slice(None), slice(longest)
        y = masked_attention(queries[:, :, None], keys[held], values[held], self._mask)  # [U, H, 1, D]
        return y[self._slots, :, 0].transpose(0, 1)
