"""The model that the commands run, and with how much of the machine."""

from __future__ import annotations

import argparse
from dataclasses import replace

from servelib.commands.options import UsageError, integer
from servelib.engine.registry import ServedModel
from servelib.errors import KernelError, PretrainedError
from servelib.model.config import DTYPES, REFERENCE
from servelib.text.chat import ChatTemplate
from servelib.text.tokenizer import Tokenizer

FUSED = "fused"
KERNELS = ("pytorch", FUSED)


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


def add_kernels(parser: argparse.ArgumentParser) -> None:
    """The option that says what computes a step between its matrix products."""
    parser.add_argument(
        "--kernels",
        choices=KERNELS,
        help="continuous: what computes between the matrix products: pytorch; or fused, the same in fewer "
        "passes and faster, for float32 on a CPU, compiled at start by your C compiler (default: pytorch)",
    )


def check_kernels(options: argparse.Namespace, engine: str) -> None:
    """Raise ``UsageError`` where ``--kernels`` says what ``engine`` does not do."""
    if options.kernels == FUSED and engine != "continuous":
        what = f"--kernels fused is of the continuous engine, not of {engine}"
        raise UsageError(f"{what}: leave it out, or take --engine continuous")


def with_kernels(model: ServedModel, kernels: str | None) -> ServedModel:
    """``model`` on the kernels named. Raises ``UsageError`` where it, or this machine, cannot."""
    if kernels != FUSED:
        return model
    from servelib.fused.model import FusedGPT  # here: they import torch
    from servelib.model.tinygpt import TinyGPT

    if not isinstance(model, TinyGPT):
        raise TypeError(f"fused kernels are TinyGPT's, got {type(model).__name__}")
    try:
        return FusedGPT(model)
    except KernelError as error:
        raise UsageError(f"--kernels fused: {error}") from None


def reference_model(threads: int | None) -> ServedModel:
    """The reference model, built from its seed, computing with ``threads`` threads of this process (one)."""
    import torch  # here, so that virtual time starts without it

    from servelib.model.tinygpt import TinyGPT

    torch.set_num_threads(threads or 1)
    return TinyGPT(REFERENCE)


def add_model(parser: argparse.ArgumentParser) -> None:
    """The options that say which model runs, where, and in which numbers."""
    group = parser.add_argument_group("model")
    group.add_argument(
        "--model",
        metavar="FOLDER",
        help="a Llama checkpoint in Hugging Face's format, or owner/name on its hub (default: the reference "
        "model, with random weights)",
    )
    group.add_argument("--device", default="cpu", help="where it computes: cpu, cuda, cuda:1 (default: cpu)")
    group.add_argument("--dtype", choices=DTYPES, help="its numbers (default: the checkpoint's own)")


def chosen_model(options: argparse.Namespace) -> ServedModel:
    """The model that ``add_model``, ``add_threads`` and ``add_kernels`` name. Raises ``UsageError``."""
    return with_kernels(_named_model(options), options.kernels)


def _named_model(options: argparse.Namespace) -> ServedModel:
    if (options.model, options.device, options.dtype) == (None, "cpu", None):
        return reference_model(options.threads)
    import torch  # here, as above

    from servelib.model.pretrained import load_model, usable_device
    from servelib.model.tinygpt import TinyGPT

    torch.set_num_threads(options.threads or 1)
    try:
        if options.model is not None:
            return load_model(options.model, dtype=options.dtype, device=options.device)
        device = usable_device(options.device)
        return TinyGPT(replace(REFERENCE, dtype=options.dtype or REFERENCE.dtype)).to(device)
    except PretrainedError as error:
        raise UsageError(str(error)) from None


def chosen_text(options: argparse.Namespace) -> tuple[Tokenizer | None, ChatTemplate | None]:
    """The checkpoint's tokenizer and chat template; None for the course's own. Raises ``UsageError``."""
    if options.model is None:
        return None, None
    from servelib.model.llama_config import read_config
    from servelib.model.pretrained import checkpoint_folder
    from servelib.text.pretrained import load_chat_template, load_tokenizer

    try:
        folder = checkpoint_folder(options.model)
        vocab_size = read_config(folder).vocab_size
        return load_tokenizer(folder, vocab_size=vocab_size), load_chat_template(folder)
    except PretrainedError as error:
        raise UsageError(str(error)) from None
