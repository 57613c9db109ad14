"""The model that the commands run, and with how much of the machine."""

from __future__ import annotations

import argparse

from servelib.commands.options import integer
from servelib.engine.registry import ServedModel
from servelib.model.config import REFERENCE


def add_threads(parser: argparse.ArgumentParser) -> None:
    """The option that says how many threads compute.

    One by default: a small model gains little from more, and a second busy program then costs a
    step a core's share, not the whole step waiting for its slowest thread.
    """
    parser.add_argument(
        "--threads",
        type=integer(1, 1024),
        metavar="N",
        help="threads that compute a step (default: 1, the steadiest; a large model wants more)",
    )


def reference_model(threads: int | None) -> ServedModel:
    """The reference model, built from its seed, computing with ``threads`` threads of this process (one)."""
    import torch  # here, so that virtual time starts without it

    from servelib.model.tinygpt import TinyGPT

    torch.set_num_threads(threads or 1)
    return TinyGPT(REFERENCE)
