"""The model's weights under the names of a Hugging Face Llama checkpoint."""

from __future__ import annotations

import torch
from torch import Tensor

from servelib.model.tinygpt import Layer, TinyGPT


def llama_views(model: TinyGPT) -> dict[str, Tensor]:
    """Every weight as a Llama checkpoint names and shapes it: a view, so writing to it loads it.

    Llama keeps queries, keys and values apart, and gate and up; here each group is one matrix, and
    its parts are rows of it. A tied output matrix has no name of its own, as in the checkpoints.
    """
    config = model.config
    queries, keys = config.heads * config.head_size, config.kv_heads * config.head_size
    views = {"model.embed_tokens.weight": model.embedding.data, "model.norm.weight": model.norm.data}
    if not config.tied_output:
        views["lm_head.weight"] = model.output.data
    for layer in model.layers:
        assert isinstance(layer, Layer)
        prefix = f"model.layers.{layer.index}"
        q, k, v = torch.split(layer.qkv.data, [queries, keys, keys])
        gate, up = torch.split(layer.gate_up.data, config.ffn_size)
        views |= {
            f"{prefix}.input_layernorm.weight": layer.attention_norm.data,
            f"{prefix}.self_attn.q_proj.weight": q,
            f"{prefix}.self_attn.k_proj.weight": k,
            f"{prefix}.self_attn.v_proj.weight": v,
            f"{prefix}.self_attn.o_proj.weight": layer.out.data,
            f"{prefix}.post_attention_layernorm.weight": layer.ffn_norm.data,
            f"{prefix}.mlp.gate_proj.weight": gate,
            f"{prefix}.mlp.up_proj.weight": up,
            f"{prefix}.mlp.down_proj.weight": layer.down.data,
        }
    return views
