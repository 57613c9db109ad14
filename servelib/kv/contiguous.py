"""The plainest KV cache: one request, keys and values of each layer in one growing block of memory."""

from __future__ import annotations

import torch
from torch import Tensor

from servelib.model.attention import causal_attention
from servelib.model.config import ModelConfig

FIRST_CAPACITY = 64


class ContiguousKV:
    """Keys and values of one request. Takes a whole prompt, a chunk of one, or a token at a time.

    Memory doubles when it runs out: each token is copied about once over a request's life, and at
    most half of what is held is idle. Reserving the full context instead would never copy, but a
    short request would hold as much as the longest; copying on each token would be quadratic.
    """

    def __init__(
        self, config: ModelConfig, *, dtype: torch.dtype = torch.float32, device: torch.device | str = "cpu"
    ) -> None:
        self.context = config.context
        self.length = 0
        # [K or V, layer, KV, capacity, D]: one layer's keys are one contiguous run for each head.
        shape = (2, config.layers, config.kv_heads, min(FIRST_CAPACITY, config.context), config.head_size)
        self._store = torch.empty(shape, dtype=dtype, device=device)

    @property
    def capacity(self) -> int:
        """Tokens that fit before the memory must grow."""
        return self._store.shape[3]

    @property
    def nbytes(self) -> int:
        """Bytes held, idle ones included."""
        return self._store.nbytes

    def positions(self, new: int) -> slice:
        """Where the next ``new`` tokens stand. Raises ``ValueError`` if they pass the context."""
        return slice(self.length, check_room(self.length, new, self.context))

    def attend(self, layer: int, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        """Store the new keys and values of one layer, and attend over all of that layer's.

        ``q``: [1, H, T, D]; ``k``, ``v``: [1, KV, T, D]. Returns [1, H, T, D].
        """
        if len(k) != 1:
            raise ValueError(f"batch: got {len(k)} rows, must be 1: this cache holds one request")
        new = self.positions(k.shape[2])
        if new.stop > self.capacity:
            self._grow(new.stop)
        keys, values = self._store[0, layer], self._store[1, layer]  # [KV, capacity, D]
        keys[:, new] = k[0]
        values[:, new] = v[0]
        return causal_attention(q, keys[None, :, : new.stop], values[None, :, : new.stop])

    def advance(self, new: int) -> None:
        """Count ``new`` tokens as held, once every layer has stored them.

        Until then a step that fails leaves the cache as it was, and can be run again.
        """
        self.length = self.positions(new).stop

    def _grow(self, needed: int) -> None:
        capacity = min(max(needed, 2 * self.capacity), self.context)
        shape = (*self._store.shape[:3], capacity, self._store.shape[4])
        bigger = self._store.new_empty(shape)
        bigger[:, :, :, : self.capacity] = self._store  # a whole copy: earlier layers may be mid-step
        self._store = bigger


def check_room(held: int, new: int, context: int) -> int:
    """How many tokens are held after ``new`` more. Raises ``ValueError`` if they pass the context."""
    if held + new > context:
        raise ValueError(
            f"{new} new tokens after {held} cached ones: the context is {context}; "
            "shorten the prompt or generate fewer tokens"
        )
    return held + new
