"""A Llama checkpoint in Hugging Face's format, to and from TinyGPT: a folder, or a name on the hub."""

from __future__ import annotations

import os
from dataclasses import replace
from importlib.util import find_spec
from os import PathLike
from pathlib import Path

import torch

from servelib.errors import PretrainedError
from servelib.model.config import DTYPES
from servelib.model.llama_config import read_config, write_config
from servelib.model.tinygpt import TinyGPT
from servelib.model.weights import INDEX, ONE_FILE, load_weights, save_weights, weight_files

NEEDED = ("*.json", "*.safetensors", "*.jinja")


def load_model(
    source: str | PathLike[str], *, dtype: str | None = None, device: torch.device | str = "cpu"
) -> TinyGPT:
    """The model of a checkpoint, on ``device``; ``dtype`` None keeps the checkpoint's own.

    Raises ``PretrainedError``, in one line, for what is absent, broken, or not Llama.
    """
    if dtype is not None and dtype not in DTYPES:
        raise PretrainedError(f"dtype: got {dtype!r}, must be one of {', '.join(DTYPES)}")
    _need("safetensors")
    where = usable_device(device)
    folder = checkpoint_folder(source)
    config = replace(read_config(folder, dtype=dtype), label=Path(source).name or folder.name)
    files = weight_files(folder)
    with where:  # weights are born where they stay: no second copy
        model = TinyGPT(config, draw=False)
    load_weights(model.to(where), files)
    return model


def save_model(model: TinyGPT, folder: str | PathLike[str]) -> None:
    """Write ``config.json`` and the weights; an older checkpoint in ``folder`` is replaced.

    Raises ``PretrainedError`` when it cannot be written.
    """
    _need("safetensors")
    from safetensors import SafetensorError

    to = Path(folder)
    try:
        to.mkdir(parents=True, exist_ok=True)
        for old in (ONE_FILE, INDEX):  # else a reader could take the old weights
            (to / old).unlink(missing_ok=True)
        write_config(model.config, to)
        save_weights(model, to)
    except (OSError, SafetensorError) as error:
        reason = error.strerror if isinstance(error, OSError) and error.strerror else error
        raise PretrainedError(f"cannot write {to}: {reason}") from None


def checkpoint_folder(source: str | PathLike[str]) -> Path:
    """The folder that ``source`` names, or where its files lie once the hub has given them.

    A name is a hub's if no such folder is there and it reads ``owner/name``. Raises ``PretrainedError``.
    """
    folder, name = Path(source), os.fspath(source)
    if name and folder.is_dir():
        return folder
    if not isinstance(source, str) or name.count("/") != 1 or name.startswith((".", "/", "~")):
        raise PretrainedError(f"{name}: no such folder; give a checkpoint's folder, or owner/name on the hub")
    _need("huggingface_hub")
    from huggingface_hub import snapshot_download

    try:
        return Path(snapshot_download(name, allow_patterns=list(NEEDED)))
    except Exception as error:  # its errors share no base class: offline, unknown, gated, a name it refuses
        reason = str(error).partition("\n")[0] or type(error).__name__
        raise PretrainedError(f"{name}: no such folder here, and not from the hub: {reason:.200}") from None


def _need(package: str) -> None:
    if find_spec(package) is None:
        raise PretrainedError(f"checkpoints need the package {package}: pip install 'servelib[checkpoints]'")


def usable_device(device: torch.device | str) -> torch.device:
    """Checked by putting something there: a name alone says nothing about a driver.

    Raises ``PretrainedError``.
    """
    try:
        where = torch.device(device)
        torch.empty(1, device=where)
    except (RuntimeError, AssertionError, NotImplementedError) as error:
        reason = str(error).partition("\n")[0]
        raise PretrainedError(f"device: got {str(device)!r}, cannot be used here: {reason}") from None
    return where
