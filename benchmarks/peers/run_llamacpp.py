"""llama.cpp by its C interface: 32 sequences at once in float32, joining and leaving at every step."""

from __future__ import annotations

import json
from collections import deque
from pathlib import Path

import gguf
import llama_cpp as llama
import numpy as np
from runner import Generate, at_once, serve
from safetensors.numpy import load_file

SEQUENCES, CONTEXT, BATCH = at_once(32), 256, 2048
NAMES = {
    "input_layernorm": "attn_norm", "self_attn.q_proj": "attn_q", "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v", "self_attn.o_proj": "attn_output", "post_attention_layernorm": "ffn_norm",
    "mlp.gate_proj": "ffn_gate", "mlp.up_proj": "ffn_up", "mlp.down_proj": "ffn_down",
    "model.embed_tokens": "token_embd", "model.norm": "output_norm", "lm_head": "output",
}  # fmt: skip


def convert(folder: Path, to: Path) -> None:
    """The checkpoint as GGUF, float32, without a vocabulary: ids go in and come out."""
    config = json.loads((folder / "config.json").read_text())
    heads, kv_heads = config["num_attention_heads"], config["num_key_value_heads"]
    writer = gguf.GGUFWriter(to, "llama")
    writer.add_context_length(config["max_position_embeddings"])
    writer.add_embedding_length(config["hidden_size"])
    writer.add_block_count(config["num_hidden_layers"])
    writer.add_feed_forward_length(config["intermediate_size"])
    writer.add_head_count(heads)
    writer.add_head_count_kv(kv_heads)
    writer.add_rope_dimension_count(config["head_dim"])
    writer.add_rope_freq_base(config["rope_theta"])
    writer.add_layer_norm_rms_eps(config["rms_norm_eps"])
    writer.add_vocab_size(config["vocab_size"])
    writer.add_file_type(gguf.LlamaFileType.ALL_F32)
    writer.add_tokenizer_model("no_vocab")
    for name, weight in load_file(folder / "model.safetensors").items():
        layer, _, part = name.removesuffix(".weight").removeprefix("model.layers.").partition(".")
        own = NAMES.get(name.removesuffix(".weight")) or f"blk.{layer}.{NAMES[part]}"
        if "q_proj" in name or "k_proj" in name:  # its rotation takes neighbours as pairs, ours halves
            n = heads if "q_proj" in name else kv_heads
            weight = weight.reshape(n, 2, len(weight) // n // 2, -1).swapaxes(1, 2).reshape(weight.shape)
        writer.add_tensor(f"{own}.weight", np.ascontiguousarray(weight, np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def load(folder: Path, threads: int) -> Generate:
    converted = folder / "model.gguf"
    if not converted.exists():
        convert(folder, converted)
    llama.llama_backend_init()
    model = llama.llama_model_load_from_file(str(converted).encode(), llama.llama_model_default_params())
    settings = llama.llama_context_default_params()
    settings.n_ctx = SEQUENCES * CONTEXT
    settings.n_seq_max = SEQUENCES
    settings.n_batch, settings.n_ubatch = BATCH, 512
    settings.n_threads = settings.n_threads_batch = threads
    settings.type_k = settings.type_v = llama.GGML_TYPE_F32
    context = llama.llama_init_from_model(model, settings)
    vocab_size = llama.llama_vocab_n_tokens(llama.llama_model_get_vocab(model))
    memory = llama.llama_get_memory(context)
    batch = llama.llama_batch_init(BATCH, 0, 1)

    def step(rows: list[tuple[int, int, int, bool]]) -> list[int]:
        """Run (token, position, sequence, wanted) rows; the likeliest next token of each wanted one."""
        for i, (token, position, sequence, wanted) in enumerate(rows):
            batch.token[i], batch.pos[i], batch.logits[i] = token, position, wanted
            batch.n_seq_id[i], batch.seq_id[i][0] = 1, sequence
        batch.n_tokens = len(rows)
        if code := llama.llama_decode(context, batch):
            raise RuntimeError(f"llama_decode gave {code}")
        wanted_rows = sum(row[3] for row in rows)
        logits = np.ctypeslib.as_array(llama.llama_get_logits(context), (wanted_rows, vocab_size))
        return logits.argmax(1).tolist()

    def generate(prompts: list[list[int]], lengths: list[int]) -> list[list[int]]:
        made: list[list[int]] = [[] for _ in prompts]
        waiting, free, running = deque(range(len(prompts))), list(range(SEQUENCES)), dict[int, int]()
        while waiting or running:
            rows = [
                (made[i][-1], len(prompts[i]) + len(made[i]) - 1, sequence, True)
                for i, sequence in running.items()
            ]
            while waiting and free and len(rows) + len(prompts[waiting[0]]) <= BATCH:
                i = waiting.popleft()
                running[i] = free.pop()
                last = len(prompts[i]) - 1
                rows += [(token, at, running[i], at == last) for at, token in enumerate(prompts[i])]
            for i, token in zip(list(running), step(rows), strict=True):
                made[i].append(token)
                if len(made[i]) == lengths[i]:
                    free.append(running.pop(i))
                    llama.llama_memory_seq_rm(memory, free[-1], -1, -1)
        return made

    return generate


if __name__ == "__main__":
    serve(load)
