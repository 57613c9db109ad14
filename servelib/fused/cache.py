"""The slots of ``SlotKV``, laid out as the fused attention reads them."""

from __future__ import annotations

import torch

from servelib.engine.batch import Batch
from servelib.fused.build import LANES
from servelib.kv.slots import check_fits
from servelib.model.config import ModelConfig


class TiledKV:
    """Memory for the keys and values of ``slots`` requests of up to ``size`` tokens each.

    In tiles of ``LANES`` tokens, so that a vector instruction takes one number of the keys of all of them.
    """

    def __init__(self, config: ModelConfig, slots: int, size: int) -> None:
        self.config, self.slots, self.size = config, slots, min(size, config.context)
        self.tiles = -(-self.size // LANES)  # of each slot
        # [layer, slot, tile, KV, K or V, numbers]: all that a layer holds of LANES tokens lies in one piece.
        shape = config.layers, slots, self.tiles, config.kv_heads, 2, LANES * config.head_size
        self.held = torch.empty(shape, dtype=torch.float32, device="cpu")  # whatever the default

    @property
    def nbytes(self) -> int:
        """Bytes held, idle ones included."""
        return self.held.nbytes

    def check(self, batch: Batch, config: ModelConfig) -> None:
        """Raise ``ValueError`` for a row beyond its slot, or of no slot, and where ``config`` is not ours.

        Nothing later would: kernels in C write wherever they are told to.
        """
        if config != self.config:
            raise ValueError("got a cache made for another model, must be of this one: take its new_slots")
        for row in batch.rows:
            check_fits(row, self.size)
            if not 0 <= row.place < self.slots or row.start < 0:
                where = f"slot {row.place} from token {row.start}"
                raise ValueError(f"request {row.request_id}: {where}, must be of {self.slots} slots, from 0")
