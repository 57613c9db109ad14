"""TinyGPT's batched step with few kernels between its matrix products, where PyTorch runs dozens.

PyTorch runs one operation after the other, and each reads and writes all its numbers. Here what can be done
in one pass is: add and normalise; rotate, store and attend; gate. The products stay PyTorch's, their weights
in oneDNN's order from the start. And the last layer computes nothing more for tokens that nobody samples.

The same weights and the same tokens as ``TinyGPT``; last bits differ, as between any two kernels.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from typing import cast

import torch
import torch.nn.functional as F  # noqa: N812 (its usual name)
from torch import Tensor

from servelib.engine.batch import Batch
from servelib.errors import KernelError
from servelib.fused.build import LANES
from servelib.fused.cache import TiledKV
from servelib.fused.kernels import Kernels, Tokens
from servelib.model.linear import MANY, onednn, reorder
from servelib.model.tinygpt import Layer, TinyGPT

PIECE = 512
"""Tokens that pass a layer's feed-forward together: more of its numbers then stay in a cache (steps of 2,048
tokens, one thread: 2 to 4 % more tokens a second than in one piece), and a large step needs less memory."""


class FusedGPT:
    """A model for any engine: flat batches run on the fused kernels, all else as ``model`` runs it.

    Float32, on the CPU. Raises ``KernelError`` for what the kernels cannot do, or without a C compiler.
    The weights are taken as they are now, and kept once more in oneDNN's order: who changes or moves
    them in ``model`` makes another ``FusedGPT``. A copy, or one unpickled, compiles kernels of its own.
    """

    def __init__(self, model: TinyGPT) -> None:
        _check(model)
        self._model, self._kernels = model, Kernels(model.config)
        kind = "fused kernels" if self._kernels.has_threads else "fused kernels without OpenMP"
        self.config = replace(model.config, label=f"{model.config.label}, {kind}")  # for the conditions
        self._layers = [_Layer(layer) for layer in cast(Iterable[Layer], model.layers)]
        self._output = _Matrix(model.output)
        # One request a step, padded rows, choosing a token: the model's own ways.
        self.new_cache, self.next_logits, self.sample = model.new_cache, model.next_logits, model.sample
        self.new_padded, self.run_padded = model.new_padded, model.run_padded
        self.sample_batch = model.sample_batch

    def __reduce__(self) -> tuple[type[FusedGPT], tuple[TinyGPT]]:
        return FusedGPT, (self._model,)

    def new_slots(self, slots: int, size: int) -> TiledKV:
        """An empty cache for ``slots`` requests of up to ``size`` tokens each."""
        return TiledKV(self.config, slots, size)

    @torch.inference_mode()
    def run(self, batch: Batch, cache: TiledKV) -> Tensor:
        """Run all rows of ``batch`` as one row of N tokens; logits [M, V] where one is sampled.

        Raises ``ValueError`` for a row that its slot cannot take, or another model's cache.
        """
        cache.check(batch, self.config)
        tokens = _tokens(batch)
        model, kernels, layers = self._model, self._kernels, self._layers
        x = F.embedding(tokens.ids, model.embedding)  # [N, W], the stream
        h = torch.empty_like(x)  # the same, normalised: what the products read
        kernels.add_rms_norm(x, None, layers[0].attention_norm, h)
        next_gains = [*(layer.attention_norm for layer in layers[1:]), model.norm]
        for i, (layer, next_gain) in enumerate(zip(layers, next_gains, strict=True)):
            asked = tokens.sampled if i == len(layers) - 1 and len(tokens.sampled) < len(x) else None
            y = kernels.attention(i, layer.qkv(h), (model.cos, model.sin), tokens, cache, asked)
            if asked is not None:
                x, h = x[asked], h[: len(asked)]
            pieces = (torch.split(whole, PIECE) for whole in (x, y, h))
            for x_piece, y_piece, h_piece in zip(*pieces, strict=True):
                self._feed_forward(layer, x_piece, y_piece, h_piece, next_gain)
        return self._output(h)

    def _feed_forward(self, layer: _Layer, x: Tensor, y: Tensor, h: Tensor, next_gain: Tensor) -> None:
        """Add attention's ``y`` and the feed-forward to ``x``; ``h`` is what the next layer reads."""
        self._kernels.add_rms_norm(x, layer.out(y), layer.ffn_norm, h)
        both = layer.gate_up(h)
        inner = both.new_empty(len(x), self.config.ffn_size)
        self._kernels.silu_and_mul(both, inner)
        self._kernels.add_rms_norm(x, layer.down(inner), next_gain, h)


class _Layer:
    """A layer's four products, gate and up as one, and its gains."""

    def __init__(self, layer: Layer) -> None:
        self.qkv, self.out = _Matrix(layer.qkv), _Matrix(layer.out)
        self.gate_up, self.down = _Matrix(layer.gate, layer.up), _Matrix(layer.down)
        self.attention_norm, self.ffn_norm = layer.attention_norm, layer.ffn_norm


class _Matrix:
    """``x`` [N, I] -> [N, O], the outputs of several weights side by side: for many tokens one product."""

    def __init__(self, *weights: Tensor) -> None:
        self._weights, self._product = weights, onednn()
        if self._product:
            self._packed = reorder(torch.cat(weights))

    def __call__(self, x: Tensor) -> Tensor:
        if self._product and len(x) >= MANY:
            return self._product(x, self._packed)
        parts = [F.linear(x, weight) for weight in self._weights]
        return parts[0] if len(parts) == 1 else torch.cat(parts, -1)


def _tokens(batch: Batch) -> Tokens:
    ids: list[int] = []
    position: list[int] = []
    slot: list[int] = []
    sampled: list[int] = []
    for row in batch.rows:
        new = len(row.ids)
        ids += row.ids
        position += range(row.start, row.start + new)
        slot += [row.place] * new
        sampled += range(len(ids) - row.samples, len(ids))
    columns = (ids, position, slot, sampled)
    return Tokens(*(torch.tensor(column, dtype=torch.long, device="cpu") for column in columns))


def _check(model: TinyGPT) -> None:
    config = model.config
    for weight in (*model.parameters(), *model.buffers()):
        if weight.dtype is not torch.float32 or weight.device.type != "cpu":
            kind = f"{str(weight.dtype).removeprefix('torch.')} on {weight.device}"
            raise KernelError(f"fused kernels: got {kind}, must be float32 on cpu; take PyTorch's kernels")
    if config.head_size % LANES:
        raise KernelError(
            f"fused kernels: got heads of {config.head_size} numbers, must be a multiple of {LANES}; "
            "take PyTorch's kernels"
        )
