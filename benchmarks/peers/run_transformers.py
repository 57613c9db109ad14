"""transformers: ``generate`` in batches of 64, padded on the left, like output lengths together."""

from __future__ import annotations

from pathlib import Path

import torch
from runner import Generate, at_once, by_length, serve
from transformers import AutoModelForCausalLM, GenerationConfig

BATCH = at_once(64)


def load(folder: Path, threads: int) -> Generate:
    torch.set_num_threads(threads)
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()
    model.generation_config = GenerationConfig(pad_token_id=0)  # no end token: lengths are given

    @torch.inference_mode()
    def generate(prompts: list[list[int]], lengths: list[int]) -> list[list[int]]:
        made: list[list[int]] = [[] for _ in prompts]
        for batch in by_length(lengths, BATCH):
            width = max(len(prompts[i]) for i in batch)
            rows = [[0] * (width - len(prompts[i])) + prompts[i] for i in batch]
            mask = [[0] * (width - len(prompts[i])) + [1] * len(prompts[i]) for i in batch]
            most = max(lengths[i] for i in batch)
            out = model.generate(
                torch.tensor(rows), attention_mask=torch.tensor(mask), do_sample=False, max_new_tokens=most
            )
            for i, ids in zip(batch, out[:, width:].tolist(), strict=True):
                made[i] = ids[: lengths[i]]
        return made

    return generate


if __name__ == "__main__":
    serve(load)
