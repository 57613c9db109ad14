from __future__ import annotations

import math

import pytest
import torch

from servelib.model.attention import causal_attention


def by_hand(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    """One query, one head at a time, in float64."""
    q, k, v = q.double(), k.double(), v.double()
    out = torch.empty_like(q)
    batch, heads, new, size = q.shape
    group, offset = heads // k.shape[1], k.shape[2] - new
    for b in range(batch):
        for h in range(heads):
            for t in range(new):
                seen = slice(0, offset + t + 1)
                scores = k[b, h // group, seen] @ q[b, h, t] / math.sqrt(size)
                out[b, h, t] = scores.softmax(-1) @ v[b, h // group, seen]
    return out


@pytest.mark.parametrize(("heads", "kv_heads"), [(8, 2), (4, 4), (3, 1)])
@pytest.mark.parametrize(("new", "total"), [(1, 1), (1, 9), (5, 5), (4, 9), (2, 40), (40, 40)])
@pytest.mark.parametrize("batch", [1, 2])
def test_it_is_causal_attention_at_every_offset(heads: int, kv_heads: int, new: int, total: int, batch: int):
    generator = torch.Generator().manual_seed(1)
    q = torch.randn(batch, heads, new, 16, generator=generator)
    k, v = (torch.randn(batch, kv_heads, total, 16, generator=generator) for _ in "kv")
    assert torch.allclose(causal_attention(q, k, v).double(), by_hand(q, k, v), atol=2e-6)
