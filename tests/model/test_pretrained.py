"""Checkpoints, beside what transformers computed from them: data/ here, by benchmarks/checkpoints.py."""

from __future__ import annotations

import json
import shutil
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from servelib.engine.naive import NaiveEngine
from servelib.errors import PretrainedError
from servelib.model import pretrained
from servelib.model.config import ModelConfig, RopeScaling
from servelib.model.tinygpt import TinyGPT
from servelib.model.weights import save_weights
from servelib.request import Request, SamplingParams

DATA = Path(__file__).parent / "data"
SHAPES = sorted(path.name for path in DATA.iterdir())
SMALL = ModelConfig(label="small", vocab_size=50, width=24, layers=2, heads=6, kv_heads=2, head_size=4,
                    ffn_size=20, context=64, seed=3)  # fmt: skip
ROPE = RopeScaling(8.0, 1.0, 4.0, 16)


def off_by(model: TinyGPT, folder: Path) -> float:
    expected = load_file(folder / "expected.safetensors")
    logits, _ = model(expected["ids"].long())
    assert logits.abs().max() > 1, "logits near 0 would agree whatever the code"
    return float((logits.float() - expected["logits"]).abs().max())


def test_the_fixtures_are_there():
    assert SHAPES == ["head-dim", "llama3", "mistral", "plain", "sharded", "tied"]


@pytest.mark.parametrize("name", SHAPES)
def test_logits_are_those_of_transformers(name: str):
    model = TinyGPT.from_pretrained(DATA / name, dtype="float32")
    assert model.config.label == name
    assert not any(weight.requires_grad for weight in model.parameters())
    assert off_by(model, DATA / name) < 1e-4


@pytest.mark.parametrize("name", SHAPES)
def test_a_checkpoint_written_again_gives_the_same_logits(name: str, tmp_path: Path):
    model = TinyGPT.from_pretrained(DATA / name, dtype="float32")
    model.save_pretrained(tmp_path / name)
    again = TinyGPT.from_pretrained(str(tmp_path / name))
    assert again.config == model.config
    assert off_by(again, DATA / name) < 1e-4


def test_what_the_fixtures_are_about_matters():
    # Each would pass above with its field ignored, were the field without effect.
    for name, change in {
        "llama3": {"rope_scaling": None},
        "head-dim": {"rope_theta": 10000.0},
        "tied": {"norm_eps": 1e-6},
    }.items():
        model = TinyGPT.from_pretrained(DATA / name)
        other = TinyGPT(replace(model.config, **change))
        other.load_state_dict(model.state_dict())
        assert off_by(other, DATA / name) > 1e-3


def test_every_field_of_a_config_is_read():
    assert TinyGPT.from_pretrained(DATA / "llama3").config == ModelConfig(
        label="llama3", vocab_size=20, width=8, layers=1, heads=2, kv_heads=1, head_size=4, ffn_size=12,
        context=64, rope_theta=500.0, norm_eps=1e-6, bos_id=1, eos_id=(2, 5, 7), rope_scaling=ROPE,
    )  # fmt: skip
    assert TinyGPT.from_pretrained(DATA / "tied").config.tied_output


def test_the_checkpoints_own_dtype_is_kept_unless_told_otherwise():
    own = TinyGPT.from_pretrained(DATA / "sharded")
    assert own.embedding.dtype is own.cos.dtype is torch.bfloat16
    assert own.config.dtype == "bfloat16"
    assert off_by(own, DATA / "sharded") < 0.2
    assert TinyGPT.from_pretrained(DATA / "plain", dtype="bfloat16").layers[0].qkv.dtype is torch.bfloat16


def test_weights_lie_in_memory_as_those_that_are_drawn():
    drawn, loaded = TinyGPT(SMALL), TinyGPT.from_pretrained(DATA / "plain")
    for a, b in zip(drawn.parameters(), loaded.parameters(), strict=False):
        assert a.is_contiguous() == b.is_contiguous()


@pytest.mark.parametrize(
    "config",
    [
        SMALL,
        replace(SMALL, tied_output=True, eos_id=(4, 5), bos_id=0),
        replace(SMALL, heads=4, kv_heads=4, head_size=10, eos_id=7),
        replace(SMALL, rope_theta=500.0, rope_scaling=ROPE),
        replace(SMALL, dtype="bfloat16"),
    ],
)
def test_what_is_saved_comes_back_bit_for_bit(config: ModelConfig, tmp_path: Path):
    model = TinyGPT(config)
    model.save_pretrained(tmp_path / "small")
    back = TinyGPT.from_pretrained(tmp_path / "small")
    assert back.config == replace(config, seed=0)
    assert (back.output is back.embedding) == config.tied_output
    assert all(torch.equal(a, b) for a, b in zip(model.parameters(), back.parameters(), strict=True))


def test_many_files_hold_each_weight_once(tmp_path: Path):
    model = TinyGPT(SMALL)
    model.save_pretrained(tmp_path)
    (tmp_path / "model.safetensors").unlink()
    save_weights(model, tmp_path, most_bytes=6000)
    files = sorted(tmp_path.glob("model-*.safetensors"))
    assert len(files) > 3
    assert all(file.stat().st_size < 6000 + 2000 for file in files)
    back = TinyGPT.from_pretrained(tmp_path)
    assert all(torch.equal(a, b) for a, b in zip(model.parameters(), back.parameters(), strict=True))


def test_saving_over_a_sharded_checkpoint_leaves_none_of_it_in_use(tmp_path: Path):
    shutil.copytree(DATA / "sharded", tmp_path / "a")
    TinyGPT(SMALL).save_pretrained(tmp_path / "a")
    assert TinyGPT.from_pretrained(tmp_path / "a").config.vocab_size == SMALL.vocab_size


def test_any_of_several_end_tokens_ends_a_request():
    model = TinyGPT(replace(SMALL, eos_id=tuple(range(50))))
    engine = NaiveEngine(model, use_cache=True)
    engine.add_request(Request("a", (1, 2), SamplingParams(max_tokens=9)))
    (output,) = engine.step()
    assert output.finish_reason is not None
    assert output.finish_reason.value == "stop"


def set_config(**changes: Any) -> Callable[[Path], None]:
    def change(folder: Path) -> None:
        path = folder / "config.json"
        content = json.loads(path.read_text()) | changes
        path.write_text(json.dumps({k: v for k, v in content.items() if v is not DROP}))

    return change


def set_weights(edit: Callable[[dict[str, torch.Tensor]], None]) -> Callable[[Path], None]:
    def change(folder: Path) -> None:
        weights = load_file(folder / "model.safetensors")
        edit(weights)
        save_file(weights, folder / "model.safetensors")

    return change


def write(name: str, content: str) -> Callable[[Path], None]:
    return lambda folder: (folder / name).write_text(content) and None


def remove(name: str) -> Callable[[Path], None]:
    return lambda folder: (folder / name).unlink()


def index(content: Any) -> Callable[[Path], None]:
    def change(folder: Path) -> None:
        (folder / "model.safetensors").unlink()
        (folder / "model.safetensors.index.json").write_text(json.dumps(content))

    return change


DROP = object()
GATE = "model.layers.1.mlp.gate_proj.weight"
EVERY = dict.fromkeys(load_file(DATA / "plain" / "model.safetensors"), "one.safetensors")


@pytest.mark.parametrize(
    ("fault", "said"),
    [
        (remove("config.json"), "cannot read .*config.json: No such file"),
        (write("config.json", "{"), "config.json is not JSON"),
        (write("config.json", "[" * 100_000), "config.json is not JSON"),
        (write("config.json", "[]"), "got list, must be a JSON object"),
        (set_config(model_type="qwen2"), "model_type: got 'qwen2', must be one of llama, mistral"),
        (set_config(model_type=DROP), "model_type: got None"),
        (set_config(attention_bias=True), "attention_bias: got True, must be False"),
        (set_config(mlp_bias=True), "mlp_bias: got True"),
        (set_config(sliding_window=4096), "sliding_window: got 4096, must be None"),
        (set_config(num_local_experts=8), "num_local_experts: got 8"),
        (set_config(hidden_act="gelu"), "hidden_act: got 'gelu', must be 'silu'"),
        (set_config(quantization_config={"bits": 4}), "quantization_config: got {'bits': 4}"),
        (set_config(rope_parameters={"rope_type": "yarn"}), "rope_type: got 'yarn', must be default"),
        (set_config(rope_parameters={"rope_type": "llama3"}), "rope_scaling: factor is missing"),
        (set_config(rope_parameters=3), "rope_scaling: got 3"),
        (set_config(rope_parameters={"rope_theta": "a"}), "rope_theta|must be real number"),
        (set_config(rope_parameters={"partial_rotary_factor": 0.5}), "partial_rotary_factor"),
        (set_config(hidden_size=DROP), "hidden_size is missing"),
        (set_config(hidden_size=0), "width: got 0"),
        (set_config(num_attention_heads=0), "zero|heads: got 0"),
        (set_config(num_attention_heads="8"), "config.json: .*"),
        (set_config(num_key_value_heads=3), "kv_heads: got 3"),
        (set_config(eos_token_id=99), "eos_id: got 99, must be from 0 to 19"),
        (set_config(eos_token_id=["x"]), "config.json: .*"),
        (set_config(dtype="float8"), "dtype: got 'float8', must be one of float32"),
        (set_config(intermediate_size=16), r"mlp.*: got shape \[8, 12\], must be \[8, 16\]"),
        (set_config(num_hidden_layers=3), r"model.layers.2.input_layernorm.weight is missing, and 8"),
        (set_config(num_hidden_layers=1), "model.layers.1.* has no such weight"),
        (set_config(tie_word_embeddings=True), "lm_head.weight is not the embedding"),
        (set_weights(lambda w: w.__delitem__(GATE)), f"weights: {GATE} is missing$"),
        (set_weights(lambda w: w.update({"model.extra": torch.zeros(1)})), "model.extra: .*no such weight"),
        (remove("model.safetensors"), "has no weights: neither model.safetensors nor"),
        (write("model.safetensors", "no weights"), "cannot read .*model.safetensors"),
        (index({}), "weight_map"),
        (index({"weight_map": {"a": "../model.safetensors"}}), r"got '../model.safetensors', must"),
        (index({"weight_map": EVERY}), "cannot read .*one.safetensors"),
    ],
)  # fmt: skip
def test_a_fault_is_one_clear_line(fault: Callable[[Path], None], said: str, tmp_path: Path):
    folder = tmp_path / "plain"
    shutil.copytree(DATA / "plain", folder)
    fault(folder)
    with pytest.raises(PretrainedError, match=said) as caught:
        TinyGPT.from_pretrained(folder)
    assert "\n" not in str(caught.value)


def test_a_weight_that_comes_twice_is_refused(tmp_path: Path):
    shutil.copytree(DATA / "sharded", tmp_path / "a")
    shutil.copy(tmp_path / "a" / "model-00001-of-00002.safetensors", tmp_path / "a" / "more.safetensors")
    path = tmp_path / "a" / "model.safetensors.index.json"
    content = json.loads(path.read_text())
    content["weight_map"]["again"] = "more.safetensors"
    path.write_text(json.dumps(content))
    with pytest.raises(PretrainedError, match="a second time, must come once"):
        TinyGPT.from_pretrained(tmp_path / "a")


def test_old_rotary_tables_and_a_doubled_embedding_pass(tmp_path: Path):
    shutil.copytree(DATA / "tied", tmp_path / "a")

    def edit(weights: dict[str, torch.Tensor]) -> None:
        weights["model.layers.0.self_attn.rotary_emb.inv_freq"] = torch.ones(2)
        weights["lm_head.weight"] = weights["model.embed_tokens.weight"].clone()

    set_weights(edit)(tmp_path / "a")
    assert off_by(TinyGPT.from_pretrained(tmp_path / "a"), DATA / "tied") < 1e-4


def test_a_generation_config_may_name_more_end_tokens(tmp_path: Path):
    shutil.copytree(DATA / "plain", tmp_path / "a")
    write("generation_config.json", '{"eos_token_id": [9, 2]}')(tmp_path / "a")
    assert TinyGPT.from_pretrained(tmp_path / "a").config.eos_id == (2, 9)


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ({"dtype": "int8"}, "dtype: got 'int8', must be one of"),
        ({"device": "nowhere"}, "device: got 'nowhere', cannot be used here"),
        ({"device": "cuda:77"}, "device: got 'cuda:77', cannot be used here"),
    ],
)
def test_a_bad_argument_is_refused(arguments: dict[str, str], said: str):
    with pytest.raises(PretrainedError, match=said):
        TinyGPT.from_pretrained(DATA / "plain", **arguments)


@pytest.mark.parametrize("source", ["nowhere", "./a/b", "/no/such/folder", "a/b/c", ""])
def test_what_is_neither_folder_nor_hub_name_is_refused(source: str):
    with pytest.raises(PretrainedError, match="no such folder"):
        pretrained.checkpoint_folder(source)


def test_a_hub_name_asks_the_hub_and_says_in_one_line_that_it_cannot(monkeypatch: pytest.MonkeyPatch):
    import huggingface_hub

    def unreachable(name: str, **_: object) -> str:
        raise OSError(f"cannot reach {name}\nlong advice\nover lines")

    monkeypatch.setattr(huggingface_hub, "snapshot_download", unreachable)
    with pytest.raises(
        PretrainedError, match="owner/name: no such folder here, and not from the hub: cannot"
    ) as e:
        TinyGPT.from_pretrained("owner/name")
    assert "long advice" not in str(e.value)
    monkeypatch.setattr(huggingface_hub, "snapshot_download", lambda name, **_: str(DATA / "plain"))
    assert TinyGPT.from_pretrained("owner/name").config.label == "name"


def test_without_the_package_the_line_says_what_to_install(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setitem(sys.modules, "safetensors", None)
    monkeypatch.setattr(pretrained, "find_spec", lambda package: None)
    with pytest.raises(PretrainedError, match=r"pip install 'servelib\[checkpoints\]'"):
        TinyGPT.from_pretrained(DATA / "plain")


def test_a_folder_that_cannot_be_written_is_said(tmp_path: Path):
    (tmp_path / "file").write_text("")
    with pytest.raises(PretrainedError, match="cannot write"):
        TinyGPT(SMALL).save_pretrained(tmp_path / "file")


def test_a_stretch_slows_slow_pairs_and_leaves_fast_ones():
    from servelib.model.rope_scaling import stretched

    turns = 500.0 ** -(torch.arange(0, 32, 2, dtype=torch.float64) / 32)
    factor = turns / stretched(turns, RopeScaling(8.0, 1.0, 4.0, 64))
    assert factor[0] == 1
    assert factor[-1] == 8
    assert (factor.diff() >= 0).all()
    assert ((factor > 1) & (factor < 8)).any()


@pytest.mark.parametrize(
    ("values", "said"),
    [
        ((0.0, 1.0, 4.0, 16), "factor: got 0.0"),
        ((8.0, 4.0, 4.0, 16), "must be below high_turns"),
        ((8.0, 1.0, float("inf"), 16), "finite"),
        ((8.0, 1.0, "4", 16), "must be a number"),
    ],
)
def test_a_scaling_that_cannot_be_is_refused(values: tuple[Any, ...], said: str):
    with pytest.raises(ValueError, match=said):
        RopeScaling(*values)
