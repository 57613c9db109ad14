"""Our continuous engine with its defaults: PyTorch's kernels, 64 sequences."""

from __future__ import annotations

from pathlib import Path

import torch
from run_servelib import through
from runner import Generate, at_once, serve

from servelib.clock import WallClock
from servelib.engine.registry import make_engine
from servelib.model.tinygpt import TinyGPT


def load(folder: Path, threads: int) -> Generate:
    torch.set_num_threads(threads)
    return through(
        make_engine("continuous", TinyGPT.from_pretrained(folder), WallClock(), max_num_seqs=at_once(64))
    )


if __name__ == "__main__":
    serve(load)
