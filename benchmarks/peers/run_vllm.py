"""vLLM's CPU build: one process, 128 sequences, no prefix cache: no run is a lookup."""

from __future__ import annotations

import os
import sys
from pathlib import Path

from runner import Generate, at_once, serve

os.environ |= {
    "VLLM_ENABLE_V1_MULTIPROCESSING": "0",
    "VLLM_CPU_KVCACHE_SPACE": "1",  # GiB
    "VLLM_LOGGING_LEVEL": "ERROR",
    "VLLM_CPU_OMP_THREADS_BIND": ",".join(map(str, sorted(os.sched_getaffinity(0))[: int(sys.argv[2])])),
    "HF_HUB_OFFLINE": "1",
    "VLLM_NO_USAGE_STATS": "1",
}


def load(folder: Path, threads: int) -> Generate:
    from vllm import LLM, SamplingParams  # here: it reads the variables above

    model = LLM(
        model=str(folder),
        dtype="float32",
        max_num_seqs=at_once(128),
        max_model_len=2048,
        enable_prefix_caching=False,
        disable_log_stats=True,
    )

    def generate(prompts: list[list[int]], lengths: list[int]) -> list[list[int]]:
        out = model.generate(
            [{"prompt_token_ids": prompt} for prompt in prompts],
            [
                SamplingParams(temperature=0, max_tokens=length, ignore_eos=True, detokenize=False)
                for length in lengths
            ],
            use_tqdm=False,
        )
        return [list(answer.outputs[0].token_ids) for answer in out]

    return generate


if __name__ == "__main__":
    serve(load)
