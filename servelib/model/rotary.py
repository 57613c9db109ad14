"""Rotary positions, half-split: a query and a key meet at an angle that is their distance. Su et al. 2021."""

from __future__ import annotations

import torch
from torch import Tensor

from servelib.model.config import ModelConfig
from servelib.model.rope_scaling import stretched


def rotary_tables(config: ModelConfig) -> tuple[Tensor, Tensor]:
    """Cosines and signed sines, [context, D] each, in float32; see ``rotate``."""
    # On the CPU wherever the model goes: not every accelerator has float64.
    half = torch.arange(0, config.head_size, 2, dtype=torch.float64, device="cpu") / config.head_size  # [D/2]
    turns = stretched(config.rope_theta**-half, config.rope_scaling)  # radians a token
    angles = torch.outer(torch.arange(config.context, dtype=torch.float64, device="cpu"), turns)
    cos, sin = angles.cos(), angles.sin()  # [context, D/2]
    return torch.cat((cos, cos), -1).float(), torch.cat((-sin, sin), -1).float()


def rotate(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Turn each pair (i, i + D/2) of ``x`` [..., T, H, D] by its position's angle; tables: [..., T, 1, D].

    Rolling by half a head puts each number's partner in its place, and the sine carries the sign:
    three kernels, where splitting and joining takes seven.
    """
    return (x * cos).addcmul_(x.roll(x.shape[-1] // 2, -1), sin)
