"""Causal attention over grouped heads: the one place where queries meet keys and values."""

from __future__ import annotations

import torch
import torch.nn.functional as F  # noqa: N812 (its usual name)
from torch import Tensor


def causal_attention(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """Each query sees the keys up to its own position; the queries are the last T of S positions.

    ``q``: [B, H, T, D]; ``k``, ``v``: [B, KV, S, D] with KV dividing H and S >= T. Returns
    [B, H, T, D]. Grouped heads share their keys and values in place, never copied out H times.
    """
    new, total = q.shape[2], k.shape[2]
    if new == 1:  # a decode step: the newest token sees everything, no mask
        return F.scaled_dot_product_attention(q, k, v, enable_gqa=True)
    if new == total:  # a whole sequence: the kernel skips what lies above the diagonal
        return F.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True)
    # A later chunk: is_causal would align the diagonal to the first key, so the mask is spelled out.
    mask = additive(torch.ones(new, total, dtype=torch.bool, device=q.device).tril(total - new), q.dtype)
    return masked_attention(q, k, v, mask)  # mask: [T, S]


def masked_attention(q: Tensor, k: Tensor, v: Tensor, mask: Tensor) -> Tensor:
    """Each query sees the keys where ``mask`` (broadcast to [B, H, T, S]) is 0, not those where it is -inf.

    Shapes as in ``causal_attention``. A query that may see nothing gives NaN.
    """
    b, heads, new, size = q.shape
    if new > 1:
        return F.scaled_dot_product_attention(q, k, v, attn_mask=mask, enable_gqa=True)
    # One query a row: the heads of a group are the rows of one product with the keys they share. The
    # fused kernel is made for long queries; here it takes twice as long.
    grouped = (q * size**-0.5).view(b, k.shape[1], -1, size)  # [B, KV, H/KV, D]
    scores = (grouped @ k.transpose(2, 3)).add_(mask)  # [B, KV, H/KV, S]
    y: Tensor = scores.softmax(-1) @ v
    return y.view(b, heads, new, size)


def additive(seen: Tensor, dtype: torch.dtype) -> Tensor:
    """A mask to add to scores: 0 where ``seen``, -inf elsewhere."""
    return torch.zeros(seen.shape, dtype=dtype, device=seen.device).masked_fill_(~seen, -torch.inf)
