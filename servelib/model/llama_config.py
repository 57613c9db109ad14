"""``config.json`` of a Llama checkpoint, read into a ``ModelConfig`` and written from one."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from servelib.errors import PretrainedError
from servelib.model.config import DTYPES, ModelConfig, RopeScaling

MODEL_TYPES = ("llama", "mistral")  # Mistral is Llama once its window is off
_SIZES = {
    "vocab_size": "vocab_size",
    "width": "hidden_size",
    "layers": "num_hidden_layers",
    "heads": "num_attention_heads",
    "ffn_size": "intermediate_size",
}
# What changes the computation and is not computed here: the only values it may have.
_ONLY: Mapping[str, tuple[Any, ...]] = {
    "hidden_act": ("silu",),
    "attention_bias": (False,),
    "mlp_bias": (False,),
    "sliding_window": (None,),
    "partial_rotary_factor": (None, 1, 1.0),
    "num_local_experts": (None, 0, 1),
    "quantization_config": (None,),
}


def read_config(folder: Path, *, dtype: str | None = None) -> ModelConfig:
    """The shape that ``folder``'s ``config.json`` describes, labelled with the folder's name.

    ``dtype`` None keeps the checkpoint's own. ``generation_config.json``, where there is one, may name
    more end tokens. Raises ``PretrainedError`` for what is broken, or is not Llama.
    """
    path = folder / "config.json"
    given = read_json(path)
    _check_architecture(given, path)
    extra = folder / "generation_config.json"
    ends = [*_ids(given), *_ids(read_json(extra) if extra.is_file() else {})]
    try:
        sizes = {name: given[key] for name, key in _SIZES.items()}
    except KeyError as error:
        raise PretrainedError(f"{path}: {error.args[0]} is missing") from None
    heads = sizes["heads"]
    try:
        return ModelConfig(
            label=folder.resolve().name,
            **sizes,
            kv_heads=_or(given.get("num_key_value_heads"), heads),
            head_size=_or(given.get("head_dim"), sizes["width"] // heads),
            context=given.get("max_position_embeddings", 2048),
            norm_eps=given.get("rms_norm_eps", 1e-6),
            tied_output=bool(given.get("tie_word_embeddings", False)),
            bos_id=given.get("bos_token_id"),
            eos_id=_one_or_more(ends),
            dtype=dtype or _dtype(given),
            **_rope(given),
        )
    except (TypeError, ZeroDivisionError, ValueError) as error:
        raise PretrainedError(f"{path}: {error}") from None


def write_config(config: ModelConfig, folder: Path) -> None:
    """Write ``config.json``; ``read_config`` gives the same shape back, with the folder's label."""
    scaling = config.rope_scaling
    content = {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        **{key: getattr(config, name) for name, key in _SIZES.items()},
        "num_key_value_heads": config.kv_heads,
        "head_dim": config.head_size,
        "max_position_embeddings": config.context,
        "rms_norm_eps": config.norm_eps,
        "rope_theta": config.rope_theta,
        "rope_scaling": scaling
        and {
            "rope_type": "llama3",
            "factor": float(scaling.factor),
            "low_freq_factor": float(scaling.low_turns),
            "high_freq_factor": float(scaling.high_turns),
            "original_max_position_embeddings": scaling.original_context,
        },
        "tie_word_embeddings": config.tied_output,
        "bos_token_id": config.bos_id,
        "eos_token_id": list(config.eos_id) if isinstance(config.eos_id, tuple) else config.eos_id,
        "hidden_act": "silu",
        "attention_bias": False,
        "mlp_bias": False,
        "torch_dtype": config.dtype,
    }
    (folder / "config.json").write_text(json.dumps(content, indent=2) + "\n", encoding="utf-8")


def read_json(path: Path) -> dict[str, Any]:
    """The object in a JSON file. Raises ``PretrainedError`` when there is none."""
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise PretrainedError(f"cannot read {path}: {error.strerror or error}") from None
    except (ValueError, RecursionError) as error:
        raise PretrainedError(f"{path} is not JSON: {error}") from None
    if not isinstance(content, dict):
        raise PretrainedError(f"{path}: got {type(content).__name__}, must be a JSON object")
    return content


def _check_architecture(given: Mapping[str, Any], path: Path) -> None:
    kind = given.get("model_type")
    if kind not in MODEL_TYPES:
        raise PretrainedError(f"{path}: model_type: got {kind!r}, must be one of {', '.join(MODEL_TYPES)}")
    for key, allowed in _ONLY.items():
        if key in given and given[key] not in allowed:
            shown = f"{given[key]!r:.80}"
            raise PretrainedError(f"{path}: {key}: got {shown}, must be {allowed[0]!r}: no other is computed")


def _rope(given: Mapping[str, Any]) -> dict[str, Any]:
    """``rope_theta`` and ``rope_scaling``, written apart or, of late, as ``rope_parameters``."""
    rope = _or(given.get("rope_parameters"), _or(given.get("rope_scaling"), {}))
    if not isinstance(rope, dict):
        raise ValueError(f"rope_scaling: got {rope!r}, must be an object or null")
    kind = rope.get("rope_type", rope.get("type", "default"))
    theta = _or(rope.get("rope_theta"), given.get("rope_theta", 10000.0))
    if rope.get("partial_rotary_factor", 1) != 1:
        raise ValueError("partial_rotary_factor: must be 1: no other is computed")
    if kind == "default":
        return {"rope_theta": theta}
    if kind != "llama3":
        raise ValueError(f"rope_type: got {kind!r}, must be default or llama3")
    try:
        scaling = RopeScaling(
            rope["factor"],
            rope["low_freq_factor"],
            rope["high_freq_factor"],
            rope.get("original_max_position_embeddings", given.get("max_position_embeddings", 2048)),
        )
    except KeyError as error:
        raise ValueError(f"rope_scaling: {error.args[0]} is missing") from None
    return {"rope_theta": theta, "rope_scaling": scaling}


def _ids(given: Mapping[str, Any]) -> list[Any]:
    ids = given.get("eos_token_id")
    if ids is None:
        return []
    return ids if isinstance(ids, list) else [ids]


def _one_or_more(ids: list[Any]) -> int | tuple[int, ...] | None:
    """A lone id as itself, several as a tuple, in the order given and each once."""
    once = tuple(dict.fromkeys(ids))
    return once if len(once) > 1 else next(iter(once), None)


def _dtype(given: Mapping[str, Any]) -> str:
    dtype = _or(given.get("dtype"), _or(given.get("torch_dtype"), "float32"))
    if dtype not in DTYPES:
        raise ValueError(f"dtype: got {dtype!r}, must be one of {', '.join(DTYPES)}")
    return str(dtype)


def _or(value: Any, default: Any) -> Any:
    return default if value is None else value
