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
    mask = torch.ones(new, total, dtype=torch.bool, device=q.device).tril(total - new)  # [T, S]
    return masked_attention(q, k, v, mask)


def masked_attention(q: Tensor, k: Tensor, v: Tensor, mask: Tensor) -> Tensor:
    """Each query sees the keys that ``mask`` (True, broadcast to [B, H, T, S]) lets it see.

    Shapes as in ``causal_attention``. A query that may see nothing gives NaN.
    """
    return F.scaled_dot_product_attention(q, k, v, attn_mask=mask, enable_gqa=True)
