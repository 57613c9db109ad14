"""The kernels as functions of tensors: contiguous, float32, on the CPU. ``kernels.c`` says what each does."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from servelib.fused.build import LANES, load_kernels
from servelib.fused.cache import TiledKV
from servelib.model.config import ModelConfig


@dataclass(frozen=True, slots=True)
class Tokens:
    """The tokens of one step: ids, and where each stands and is kept, [N]; ``sampled``: which are, [M]."""

    ids: Tensor
    position: Tensor
    slot: Tensor
    sampled: Tensor


class Kernels:
    """Compiled for ``config``. Each runs on as many threads as PyTorch does. Raises ``KernelError``."""

    def __init__(self, config: ModelConfig) -> None:
        self._config = config
        self._library = load_kernels(heads=config.heads, kv_heads=config.kv_heads, head_size=config.head_size)
        self.has_threads = bool(self._library.has_threads())  # else one, whatever PyTorch has

    def add_rms_norm(self, x: Tensor, delta: Tensor | None, gain: Tensor, y: Tensor) -> None:
        """``x`` [N, W] += ``delta``, in place; ``y`` = ``x`` normalised, times ``gain`` [W]."""
        self._library.add_rms_norm(
            x.data_ptr(), delta if delta is None else delta.data_ptr(), gain.data_ptr(), y.data_ptr(),
            *x.shape, self._config.norm_eps, torch.get_num_threads(),
        )  # fmt: skip

    def silu_and_mul(self, both: Tensor, y: Tensor) -> None:
        """``y`` [N, F] = SiLU of the first half of each row of ``both`` [N, 2 F], times the second."""
        self._library.silu_and_mul(both.data_ptr(), y.data_ptr(), *y.shape, torch.get_num_threads())

    def attention(
        self, layer: int, qkv: Tensor, tables: tuple[Tensor, Tensor], tokens: Tokens, cache: TiledKV,
        asked: Tensor | None = None,
    ) -> Tensor:  # fmt: skip
        """Store what ``qkv`` [N, (H + 2 KV) D] holds, attend for the tokens ``asked`` (None: all): [M, H D].

        ``tables`` are the rotary ones, [context, D] each.
        """
        cos, sin = tables
        threads, config = torch.get_num_threads(), self._config
        new = len(qkv) if asked is None else len(asked)
        y = qkv.new_empty(new, config.heads * config.head_size)
        scores = qkv.new_empty(threads, config.heads // config.kv_heads, cache.tiles * LANES)
        self._library.attention(
            qkv.data_ptr(), cos.data_ptr(), sin.data_ptr(),
            tokens.position.data_ptr(), tokens.slot.data_ptr(), cache.held[layer].data_ptr(),
            scores.data_ptr(), asked if asked is None else asked.data_ptr(), y.data_ptr(),
            len(qkv), new, cache.tiles, threads,
        )  # fmt: skip
        return y
