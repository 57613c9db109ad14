"""Our engine at its best known setting: fused kernels, 128 sequences. ``run_pytorch.py`` has its defaults."""

from __future__ import annotations

from pathlib import Path

import torch
from runner import Generate, at_once, serve

from servelib.clock import WallClock
from servelib.engine.protocol import Engine
from servelib.engine.registry import make_engine
from servelib.fused.model import FusedGPT
from servelib.model.tinygpt import TinyGPT
from servelib.request import Request, SamplingParams


def load(folder: Path, threads: int) -> Generate:
    torch.set_num_threads(threads)
    model = FusedGPT(TinyGPT.from_pretrained(folder))
    return through(make_engine("continuous", model, WallClock(), max_num_seqs=at_once(128)))


def through(engine: Engine) -> Generate:
    """All requests at once, until the engine has no more work."""

    def generate(prompts: list[list[int]], lengths: list[int]) -> list[list[int]]:
        made: dict[str, list[int]] = {}
        for index, (prompt, length) in enumerate(zip(prompts, lengths, strict=True)):
            sampling = SamplingParams(max_tokens=length, ignore_eos=True)
            engine.add_request(Request(str(index), tuple(prompt), sampling))
            made[str(index)] = []
        while engine.has_work:
            for output in engine.step():
                made[output.request_id] += output.token_ids
        return list(made.values())

    return generate


if __name__ == "__main__":
    serve(load)
