from __future__ import annotations

import dataclasses

import pytest

from servelib.model.config import REFERENCE, ModelConfig


def test_the_reference_has_its_stated_size():
    assert REFERENCE.parameters == 5_838_080
    assert REFERENCE.label == "TinyGPT (reference, random weights)"
    assert (REFERENCE.vocab_size, REFERENCE.bos_id, REFERENCE.eos_id) == (260, 256, 257)


@pytest.mark.parametrize(
    "name", ["vocab_size", "width", "layers", "heads", "kv_heads", "head_size", "ffn_size", "context"]
)
def test_a_size_is_at_least_one(name: str):
    with pytest.raises(ValueError, match=f"{name}: got 0"):
        ModelConfig(label="x", **{name: 0})


def test_sizes_that_do_not_fit_are_refused():
    with pytest.raises(ValueError, match="kv_heads"):
        ModelConfig(label="x", heads=8, kv_heads=3)
    with pytest.raises(ValueError, match="head_size"):
        ModelConfig(label="x", head_size=31)


@pytest.mark.parametrize(
    ("field", "value", "said"),
    [
        ("width", 2.5, "at least 1"),
        ("layers", True, "at least 1"),
        ("context", 0, "at least 1"),
        ("norm_eps", float("nan"), "finite"),
        ("norm_eps", 0.0, "above 0"),
        ("rope_theta", float("inf"), "finite"),
        ("eos_id", 260, "from 0 to 259"),
        ("bos_id", -1, "from 0 to 259"),
        ("dtype", "float31", "float32"),
    ],
)
def test_a_bad_value_is_named_with_its_limit(field, value, said):
    with pytest.raises(ValueError, match=f"{field}: got .*{said}"):
        dataclasses.replace(REFERENCE, **{field: value})
