"""CTranslate2: batches of 64, requests of like output length together.

It gives every row of a batch as many tokens as the longest wants; what is over is cut off and not counted.
"""

from __future__ import annotations

import json
from pathlib import Path

import ctranslate2
from ctranslate2.converters import TransformersConverter
from runner import Generate, at_once, by_length, serve

BATCH = at_once(64)


def load(folder: Path, threads: int) -> Generate:
    converted = folder / "ctranslate2"
    if not converted.exists():
        TransformersConverter(str(folder)).convert(str(converted), quantization="float32")
    names = json.loads((converted / "vocabulary.json").read_text())
    model = ctranslate2.Generator(
        str(converted), device="cpu", compute_type="float32", inter_threads=1, intra_threads=threads
    )

    def generate(prompts: list[list[int]], lengths: list[int]) -> list[list[int]]:
        made: list[list[int]] = [[] for _ in prompts]
        for batch in by_length(lengths, BATCH):
            most = max(lengths[i] for i in batch)
            out = model.generate_batch(
                [[names[token] for token in prompts[i]] for i in batch],
                max_batch_size=0,
                beam_size=1,
                sampling_topk=1,
                max_length=most,
                min_length=most,
                include_prompt_in_result=False,
                end_token=[],
            )
            for i, answer in zip(batch, out, strict=True):
                made[i] = answer.sequences_ids[0][: lengths[i]]
        return made

    return generate


if __name__ == "__main__":
    serve(load)
