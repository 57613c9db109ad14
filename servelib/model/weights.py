"""The model's weights under the names of a Hugging Face Llama checkpoint, in safetensors files."""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path

import torch
from torch import Tensor

from servelib.errors import PretrainedError
from servelib.model.llama_config import read_json
from servelib.model.tinygpt import Layer, TinyGPT

ONE_FILE, INDEX = "model.safetensors", "model.safetensors.index.json"
OUTPUT = "lm_head.weight"


def llama_views(model: TinyGPT) -> dict[str, Tensor]:
    """Every weight as a Llama checkpoint names and shapes it: a view, so writing to it loads it.

    Llama keeps queries, keys and values apart; here they are one matrix, and its parts are rows of it.
    A tied output matrix has no name of its own, as in the checkpoints.
    """
    config = model.config
    queries, keys = config.heads * config.head_size, config.kv_heads * config.head_size
    views = {"model.embed_tokens.weight": model.embedding.detach(), "model.norm.weight": model.norm.data}
    if not config.tied_output:
        views[OUTPUT] = model.output.detach()
    for layer in model.layers:
        assert isinstance(layer, Layer)
        prefix = f"model.layers.{layer.index}"
        q, k, v = torch.split(layer.qkv.detach(), [queries, keys, keys])
        views |= {
            f"{prefix}.input_layernorm.weight": layer.attention_norm.detach(),
            f"{prefix}.self_attn.q_proj.weight": q,
            f"{prefix}.self_attn.k_proj.weight": k,
            f"{prefix}.self_attn.v_proj.weight": v,
            f"{prefix}.self_attn.o_proj.weight": layer.out.detach(),
            f"{prefix}.post_attention_layernorm.weight": layer.ffn_norm.detach(),
            f"{prefix}.mlp.gate_proj.weight": layer.gate.detach(),
            f"{prefix}.mlp.up_proj.weight": layer.up.detach(),
            f"{prefix}.mlp.down_proj.weight": layer.down.detach(),
        }
    return views


def weight_files(folder: Path) -> list[Path]:
    """The one safetensors file of a checkpoint, or all that its index names.

    Raises ``PretrainedError`` when there is neither.
    """
    if (folder / ONE_FILE).is_file():
        return [folder / ONE_FILE]
    index = folder / INDEX
    if not index.is_file():
        raise PretrainedError(f"{folder} has no weights: neither {ONE_FILE} nor {INDEX}")
    names = read_json(index).get("weight_map")
    if not isinstance(names, dict) or not names:
        raise PretrainedError(f"{index}: weight_map: must be an object of weight names and files")
    files = sorted(set(map(str, names.values())))
    for name in files:
        if Path(name).name != name:  # no way out of the folder
            raise PretrainedError(f"{index}: got {name!r}, must be the name of a file beside it")
    return [folder / name for name in files]


def load_weights(model: TinyGPT, files: Iterable[Path]) -> None:
    """Fill every weight of ``model`` from safetensors files, converted to its dtype, on its device.

    Raises ``PretrainedError`` unless the files hold each weight once, in its shape, and no other.
    Old checkpoints also hold rotary tables, and tied ones may hold the embedding twice: those pass.
    """
    from safetensors import SafetensorError, safe_open

    views = llama_views(model)
    missing = set(views)
    for path in files:
        try:
            with safe_open(path, framework="pt") as file:
                for name in file.keys():  # noqa: SIM118 (it is no mapping)
                    if name.endswith(".rotary_emb.inv_freq"):
                        continue
                    weight: Tensor = file.get_tensor(name)
                    if name == OUTPUT and model.config.tied_output:
                        views[OUTPUT] = weight.to(model.embedding)
                        continue
                    _fill(views, missing, name, weight, path)
        except (OSError, SafetensorError) as error:
            raise PretrainedError(f"cannot read {path}: {error}") from None
    if missing:
        first, more = min(missing), len(missing) - 1
        raise PretrainedError(f"weights: {first} is missing" + (f", and {more} more" if more else ""))
    if model.config.tied_output and not torch.equal(views.get(OUTPUT, model.embedding), model.embedding):
        raise PretrainedError(
            f"{OUTPUT} is not the embedding, though config.json has tie_word_embeddings true"
        )


def save_weights(model: TinyGPT, folder: Path, *, most_bytes: int = 5_000_000_000) -> None:
    """Write ``model.safetensors``, or several files of at most ``most_bytes`` and their index.

    A single weight is never split.
    """
    from safetensors.torch import save_file

    shards: list[dict[str, Tensor]] = [{}]
    for name, view in llama_views(model).items():
        if shards[-1] and sum(held.nbytes for held in shards[-1].values()) + view.nbytes > most_bytes:
            shards.append({})
        shards[-1][name] = view
    names = [ONE_FILE]
    if len(shards) > 1:
        names = [f"model-{i + 1:05d}-of-{len(shards):05d}.safetensors" for i in range(len(shards))]
        total = sum(view.nbytes for shard in shards for view in shard.values())
        index = {
            "metadata": {"total_size": total},
            "weight_map": {name: file for file, shard in zip(names, shards, strict=True) for name in shard},
        }
        (folder / INDEX).write_text(json.dumps(index, indent=2) + "\n", encoding="utf-8")
    for file, shard in zip(names, shards, strict=True):
        # Rows in order, as files hold them: in memory a matrix lies column by column.
        held = {name: view.contiguous() for name, view in shard.items()}
        save_file(held, folder / file, metadata={"format": "pt"})


def _fill(views: dict[str, Tensor], missing: set[str], name: str, weight: Tensor, path: Path) -> None:
    if name not in views:
        raise PretrainedError(f"{path}: {name}: a Llama model as in config.json has no such weight")
    if name not in missing:
        raise PretrainedError(f"{path}: {name}: got it a second time, must come once")
    if weight.shape != views[name].shape:
        got, must = list(weight.shape), list(views[name].shape)
        raise PretrainedError(f"{path}: {name}: got shape {got}, must be {must} by config.json")
    views[name].copy_(weight)
    missing.remove(name)
