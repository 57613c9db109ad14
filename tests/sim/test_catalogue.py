from __future__ import annotations

from dataclasses import replace

import pytest

from servelib.errors import InvalidRequestError
from servelib.model.config import REFERENCE
from servelib.sim.machines import Figure, devices_for, machine_named, machines
from servelib.sim.models import model_named, model_sources, models
from servelib.sim.shape import Experts, Shape, kv_bytes_per_token, weight_bytes

# Weights, weights that one token uses, and bytes of keys and values a token, each worked out elsewhere.
PUBLISHED = {
    "llama3-8b": (8_030_261_248, 8_030_261_248, 131_072),
    "llama3-70b": (70_553_706_496, 70_553_706_496, 327_680),
    "qwen2.5-7b": (7_615_616_512, 7_615_616_512, 57_344),
    "qwen3-8b": (8_190_735_360, 8_190_735_360, 147_456),
    "qwen3-32b": (32_762_123_264, 32_762_123_264, 262_144),
    "qwen3-30b-a3b": (30_532_122_624, 3_353_032_704, 98_304),
    "mixtral-8x7b": (46_702_792_704, 12_879_925_248, 131_072),
}


@pytest.mark.parametrize("name", PUBLISHED)
def test_shapes_give_the_published_sizes(name):
    shape = model_named(name)
    assert isinstance(shape, Shape)
    assert (shape.parameters, shape.active_parameters, kv_bytes_per_token(shape)) == PUBLISHED[name]
    assert weight_bytes(shape) == 2 * shape.parameters


def test_the_reference_model_is_the_one_that_is_built():
    assert model_named("tinygpt") is REFERENCE
    assert kv_bytes_per_token(REFERENCE) == 2 * 6 * 2 * 32 * 4
    assert set(models()) == {"tinygpt", *PUBLISHED}


def test_every_figure_has_a_source_and_every_shape_too():
    assert {"cpu", "h200", "h100", "a100", "l4", "rtx4090", "mi300x", "tpu-v5e", "m4-max"} <= set(machines())
    for machine in machines().values():
        for name, figure in machine.figures().items():
            assert len(figure.source) > 10, (machine.id, name)
    assert set(model_sources()) == set(PUBLISHED)
    assert all(model_sources().values())


def test_what_was_not_checked_is_marked():
    unchecked = {m.id: [n for n, f in m.figures().items() if not f.checked] for m in machines().values()}
    assert {name: found for name, found in unchecked.items() if found} == {
        "m4-max": ["operations, float32", "operations, float16"]
    }


def test_an_unknown_name_lists_the_known_ones():
    with pytest.raises(InvalidRequestError, match=r"machine: got 'h1000', must be one of cpu, h200, h100"):
        machine_named("h1000")
    with pytest.raises(InvalidRequestError, match=r"model: got 'gpt', must be one of tinygpt, llama3-8b"):
        model_named("gpt")


def test_a_machine_without_bandwidth_or_rate_is_refused():
    h100 = machine_named("h100")
    with pytest.raises(InvalidRequestError, match="bandwidth of NVIDIA H100 SXM"):
        replace(h100, bandwidth=Figure(0.0, "nowhere"))
    with pytest.raises(InvalidRequestError, match="has a rate for: bfloat16"):
        machine_named("tpu-v5e").peak("float32")
    assert machine_named("m4-max").peak("bfloat16") == 18.4e12  # float16 stands in


def test_bandwidth_is_the_caches_for_a_model_that_stays_there():
    cpu = machine_named("cpu")
    assert cpu.bytes_per_second(1e6) > cpu.bytes_per_second(1e9) == cpu.bandwidth.value


def test_devices_are_the_fewest_that_hold_it():
    h100 = machine_named("h100")
    assert [devices_for(gb * 1e9, h100) for gb in (80, 81, 161, 640)] == [1, 2, 4, 8]
    with pytest.raises(InvalidRequestError, match="8 x 80 GB of NVIDIA H100"):
        devices_for(641e9, h100)
    with pytest.raises(InvalidRequestError, match="1 x 128 GB of Apple"):
        devices_for(141e9, machine_named("m4-max"))


@pytest.mark.parametrize("bad", [(8, 0, 4), (8, 9, 4), (8, 2, 0)])
def test_experts_that_cannot_be_are_refused(bad):
    with pytest.raises(ValueError, match="expert"):
        Experts(*bad)
