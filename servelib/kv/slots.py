"""The KV cache of a batch: fixed slots of equal size, one for each request that runs.

Which request holds which slot, and how far it has come, is said by each row of a batch (the scheduler
and its pool know); nothing of it is kept here. A slot may hold what an earlier request left behind:
a row never reads past its own last token.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from servelib.engine.batch import Batch, Row
from servelib.model.attention import causal_attention, masked_attention
from servelib.model.config import ModelConfig


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
        self.slots, self.size = slots, size
        # [K or V, layer, slot, KV, size, D]. Zeros, not whatever was in memory: a masked position
        # counts with weight 0, and 0 times NaN is NaN.
        shape = (2, config.layers, slots, config.kv_heads, size, config.head_size)
        self._store = torch.zeros(shape, dtype=dtype, device=device)

    @property
    def nbytes(self) -> int:
        """Bytes held, idle ones included."""
        return self._store.nbytes

    def view(self, batch: Batch) -> SlotView:
        """The memory as one step sees it: what ``TinyGPT`` is given for the row of all its tokens.

        Raises ``ValueError`` for a row that does not fit its slot.
        """
        for row in batch.rows:
            end = row.start + len(row.ids)
            if end > self.size:
                raise ValueError(f"request {row.request_id}: {end} tokens, a slot holds {self.size}")
        return SlotView(self._store, batch.rows)


@dataclass(frozen=True, slots=True)
class _Prefill:
    """A row of several tokens: where it is in the flat row, and how much of its slot it reads."""

    tokens: slice
    slot: int
    end: int


class SlotView:
    """One step's tokens, in their slots. A ``KVCache`` for the model, good for this step only.

    Rows of one token (decodes) share one attention over a view of the slots in use, nothing copied:
    the pool gives the lowest slots first, so few slots in between are read in vain. Every other row
    (a prompt, a piece of one, guesses to verify) has its own.
    """

    def __init__(self, store: Tensor, rows: tuple[Row, ...]) -> None:
        self._store = store
        device = store.device
        slots, positions = [], []  # of each token
        decodes, lengths = [], {}
        self._prefills: list[_Prefill] = []
        for row in rows:
            first, end = len(slots), row.start + len(row.ids)
            slots += [row.place] * len(row.ids)
            positions += range(row.start, end)
            if len(row.ids) == 1:
                decodes.append(first)
                lengths[row.place] = end
            else:
                self._prefills.append(_Prefill(slice(first, len(slots)), row.place, end))
        # One transfer for all numbers of the step.
        at = torch.tensor([slots, positions], device=device)  # [2, N]
        self._slots, self._positions = at
        self._decodes: Tensor | None = None
        if decodes:
            used, longest = max(lengths) + 1, max(lengths.values())
            reach = torch.tensor([lengths.get(slot, 1) for slot in range(used)], device=device)  # [U]
            self._mask = (torch.arange(longest, device=device) < reach[:, None])[
                :, None, None
            ]  # [U, 1, 1, S]
            self._decodes = torch.tensor(decodes, device=device)

    def positions(self, new: int) -> Tensor:
        """Where each token of the flat row stands in its own sequence, [N]."""
        return self._positions

    def attend(self, layer: int, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        """Store one layer's new keys and values, each in its slot; attend over each row's own.

        ``q``: [1, H, N, D]; ``k``, ``v``: [1, KV, N, D], N the tokens of all rows. Returns [1, H, N, D].
        """
        keys, values = self._store[:, layer]  # [slots, KV, size, D]
        keys[self._slots, :, self._positions] = k[0].transpose(0, 1)
        values[self._slots, :, self._positions] = v[0].transpose(0, 1)
        out = torch.empty_like(q)
        if self._decodes is not None:
            used, _, _, longest = self._mask.shape
            slots = self._slots[self._decodes]
            one = q.new_zeros(used, q.shape[1], 1, q.shape[3])  # [U, H, 1, D]: a query for each slot
            one[slots, :, 0] = q[0, :, self._decodes].transpose(0, 1)
            y = masked_attention(one, keys[:used, :, :longest], values[:used, :, :longest], self._mask)
            out[0, :, self._decodes] = y[slots, :, 0].transpose(0, 1)
        for row in self._prefills:
            held = slice(row.slot, row.slot + 1), slice(None), slice(row.end)
            out[:, :, row.tokens] = causal_attention(q[:, :, row.tokens], keys[held], values[held])
        return out

    def advance(self, new: int) -> None:
        """Nothing to count: the next batch says where its rows start."""
