"""Runs with transformers: makes small Llama models and their logits, or reads a folder and gives its logits.

python logits.py make FOLDER       every shape of SHAPES: a checkpoint, and expected.safetensors beside it
python logits.py read FOLDER       expected.safetensors for a checkpoint that somebody else wrote
"""

from __future__ import annotations

import sys
from pathlib import Path

import torch
from safetensors.torch import save_file
from transformers import (
    AutoModelForCausalLM,
    LlamaConfig,
    LlamaForCausalLM,
    MistralConfig,
    MistralForCausalLM,
)

SMALL = {
    "vocab_size": 20, "hidden_size": 8, "intermediate_size": 12, "num_hidden_layers": 2,
    "num_attention_heads": 2, "num_key_value_heads": 1, "max_position_embeddings": 64,
    "bos_token_id": 1, "eos_token_id": 2,
}  # fmt: skip
LLAMA3 = {
    "rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
    "original_max_position_embeddings": 16, "rope_theta": 500.0,
}  # fmt: skip
SHAPES = {
    "plain": {},
    "tied": {"tie_word_embeddings": True, "num_key_value_heads": 2, "rms_norm_eps": 1e-3},
    "head-dim": {"head_dim": 6, "num_key_value_heads": 2, "rope_parameters": {"rope_theta": 100.0}},
    "llama3": {"rope_parameters": LLAMA3, "eos_token_id": [2, 5, 7], "num_hidden_layers": 1},
    "sharded": {"num_hidden_layers": 3, "dtype": "bfloat16"},
    "mistral": {"sliding_window": None},
}


def make(folder: Path) -> None:
    for index, (name, change) in enumerate(SHAPES.items()):
        torch.manual_seed(index)
        kind, shape = (
            (MistralForCausalLM, MistralConfig) if name == "mistral" else (LlamaForCausalLM, LlamaConfig)
        )
        # Wide draws: logits of size 1, so that an error has room to show.
        model = kind(shape(**{**SMALL, "initializer_range": 0.4, **change})).eval()
        for weight in model.parameters():
            if weight.dim() == 1:  # gains of 1 would hide a missing one
                weight.data.uniform_(0.5, 1.5)
        model.to(torch.bfloat16 if name == "sharded" else torch.float32)
        model.save_pretrained(folder / name, max_shard_size="2KB" if name == "sharded" else "5GB")
        read(folder / name)


def read(folder: Path) -> None:
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()
    length = min(model.config.max_position_embeddings, 64)
    ids = torch.randint(model.config.vocab_size, (1, length), generator=torch.Generator().manual_seed(1))
    with torch.inference_mode():
        logits = model(ids).logits
    save_file({"ids": ids.to(torch.int32), "logits": logits.contiguous()}, folder / "expected.safetensors")


if __name__ == "__main__":
    {"make": make, "read": read}[sys.argv[1]](Path(sys.argv[2]))
