"""The KV cache of a static batch: rows of one length, the short ones padded on the left."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from servelib.kv.contiguous import FIRST_CAPACITY, check_room
from servelib.model.attention import additive, masked_attention
from servelib.model.config import ModelConfig


class PaddedKV:
    """Keys and values of rows that start and go on together, ``pads[b]`` columns of row b wasted.

    Column c of row b holds its token number c - pads[b]. Padding is on the left, so that all rows
    end in the same column: each step adds one column, and the newest logits are the last column's.
    """

    def __init__(
        self,
        config: ModelConfig,
        pads: Sequence[int],
        *,
        dtype: torch.dtype = torch.float32,
        device: torch.device | str = "cpu",
    ) -> None:
        self.context = config.context
        self.length = 0  # columns held
        self._pads = torch.tensor(list(pads), device=device)  # [B]
        # [K or V, layer, B, KV, capacity, D]
        shape = (2, config.layers, len(pads), config.kv_heads, min(FIRST_CAPACITY, config.context))
        self._store = torch.empty(*shape, config.head_size, dtype=dtype, device=device)
        self._mask = self._store.new_empty(0, 0, 0, 0)  # of this step: [B, 1, T, S]

    @property
    def nbytes(self) -> int:
        """Bytes held, idle and padding included."""
        return self._store.nbytes

    def positions(self, new: int) -> Tensor:
        """Where each new token stands in its own row, [B, T]; a pad stands nowhere and says 0.

        Raises ``ValueError`` if the columns pass the context.
        """
        end = check_room(self.length, new, self.context)
        columns = torch.arange(self.length, end, device=self._pads.device)
        return (columns - self._pads[:, None]).clamp(min=0)

    def attend(self, layer: int, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        """Store the new columns of one layer; attend over all, no token seeing a pad.

        ``q``: [B, H, T, D]; ``k``, ``v``: [B, KV, T, D]. Returns [B, H, T, D].
        """
        end = check_room(self.length, k.shape[2], self.context)
        if end > self._store.shape[4]:
            self._grow(end)
        keys, values = self._store[:, layer, :, :, :end]  # [B, KV, S, D]
        keys[:, :, self.length :] = k
        values[:, :, self.length :] = v
        if self._mask.shape[2:] != (q.shape[2], end):  # once a step
            self._mask = additive(self._seen(end), q.dtype)
        return masked_attention(q, keys, values, self._mask)

    def advance(self, new: int) -> None:
        """Count ``new`` columns as held, once every layer has stored them."""
        self.length = check_room(self.length, new, self.context)

    def _seen(self, end: int) -> Tensor:
        """Which column sees which, [B, 1, T, S]: real tokens the real ones up to their own.

        Pads see the pads before them: what they get is never read, but an empty row would be NaN.
        """
        held = torch.arange(end, device=self._pads.device)
        new = held[self.length :, None]  # [T, 1]
        real = held >= self._pads[:, None]  # [B, S]
        return ((held <= new) & (real[:, None, :] == real[:, self.length :, None]))[:, None]

    def _grow(self, needed: int) -> None:
        capacity = min(max(needed, 2 * self._store.shape[4]), self.context)
        bigger = self._store.new_empty(*self._store.shape[:4], capacity, self._store.shape[5])
        bigger[:, :, :, :, : self._store.shape[4]] = self._store
        self._store = bigger
