"""The matrix product of every layer, by the fastest kernel at hand for its size.

In float32 on a CPU, PyTorch calls MKL, which takes 8 numbers an instruction (AVX2) on processors that are
not its maker's. oneDNN, also inside PyTorch, takes 16 (AVX-512) on any that can: twice as fast for the many
tokens of a batch. For one token MKL wins: it starts sooner, and the memory is the limit anyway.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F  # noqa: N812 (its usual name)
from torch import Tensor

ONEDNN = bool(torch.backends.mkl.is_available() and torch.backends.mkldnn.is_available())  # type: ignore[no-untyped-call]
"""Whether this PyTorch has both; elsewhere (ARM, a Mac) its own choice stands."""

MANY = 4
"""Tokens from which oneDNN is quicker, as measured: fewer, and the weights' way from memory decides."""


def linear(x: Tensor, weight: Tensor) -> Tensor:
    """``x``: [..., I], ``weight``: [O, I] -> [..., O]."""
    tokens = x.numel() // x.shape[-1]
    if ONEDNN and tokens >= MANY and x.dtype is torch.float32 and x.device.type == "cpu":
        y: Tensor = torch.ops.mkldnn._linear_pointwise(x, weight, None, "none", [], "")  # no activation
        return y
    return F.linear(x, weight)
