"""The panel of the arithmetic, driven by its traits."""

from __future__ import annotations

import pytest

from servelib.errors import InvalidRequestError
from servelib.notebook.arithmetic import arithmetic_knobs
from servelib.sim.machines import machine_named, machines
from servelib.sim.models import model_named, models
from servelib.sim.roofline import RooflineCost


@pytest.fixture
def panel():
    return arithmetic_knobs()


def bars(panel):
    return [(trace.x, trace.text) for trace in panel.figure.data]


def test_it_shows_what_the_cost_model_says(panel):
    cost = RooflineCost(model_named("llama3-70b"), machine_named("h100"), devices=4)
    step = [(1, 1024)] * 32
    seconds = cost.seconds_of(step)
    said = panel.headline.value
    assert f"A step takes {1e3 * seconds:.3g} ms and runs {32 / seconds:,.0f} new tokens/s" in said
    assert "waits for memory" in said
    assert "operations a byte" in said
    assert f"room for {cost.cache_tokens:,} tokens and holds {32 * 1025:,}" in said
    shown = next(trace for trace in panel.figure.data if trace.name == "moving")
    assert list(shown.x) == pytest.approx([1e3 * part.moving for part in cost.parts(step)])
    assert "A step takes" in panel.figure.layout.meta["alt"]
    assert 'role="status"' in said


def test_a_long_prompt_waits_for_computing(panel):
    panel.new_tokens.value, panel.cached.value, panel.batch.value = 2048, 0, 1
    assert "waits for computing" in panel.headline.value


@pytest.mark.parametrize(
    ("knob", "value"),
    [
        ("batch", 128),
        ("new_tokens", 256),
        ("cached", 4096),
        ("devices", 8),
        ("machine", "h200"),
        ("model", "llama3-8b"),
    ],
)
def test_each_knob_moves_headline_and_figure_in_place(panel, knob, value):
    widget, before = panel.figure, (panel.headline.value, bars(panel))
    getattr(panel, knob).value = value
    assert panel.headline.value != before[0]
    assert bars(panel) != before[1]
    assert panel.figure is widget
    assert 'role="status"' in panel.headline.value
    assert panel.status.value == ""


def test_the_number_format_matters(panel):
    panel.model.value = "llama3-8b"
    before = panel.headline.value
    panel.dtype.value = "bfloat16"
    assert panel.headline.value == before  # its own
    panel.dtype.value = "float32"
    assert panel.headline.value != before


@pytest.mark.parametrize(
    ("turned", "said"),
    [
        ({"devices": 1}, "take 2 devices or more"),
        ({"batch": 1024}, "so that their keys and values fit"),
        ({"cached": 131_072}, "the context of"),
        (
            {"model": "tinygpt", "dtype": "bfloat16", "machine": "cpu", "cached": 16},
            "has a rate for: float32",
        ),
    ],
)
def test_a_step_that_cannot_be_is_one_line_and_has_no_bars(panel, turned, said):
    for knob, value in turned.items():
        getattr(panel, knob).value = value
    assert said in panel.headline.value
    assert 'role="alert"' in panel.headline.value
    assert "\n" not in panel.headline.value
    assert panel.status.value == ""  # it was expected, not a broken callback
    assert not any(any(trace.x) for trace in panel.figure.data if trace.x[0] is not None)
    for knob, value in {"devices": 4, "batch": 32, "cached": 1024, "dtype": "", "machine": "h100"}.items():
        getattr(panel, knob).value = value
    panel.model.value = "llama3-70b"
    assert panel.headline.value.startswith('<div role="status">A step takes')
    assert any(any(trace.x) for trace in panel.figure.data)


def test_the_first_control_is_the_batch_and_all_are_offered(panel):
    assert panel.children[0].children[0] is panel.batch
    assert [value for _, value in panel.machine.options] == list(machines())
    assert [value for _, value in panel.model.options] == list(models())


@pytest.mark.parametrize("model", models())
def test_every_model_has_a_step_somewhere(panel, model):
    panel.devices.value, panel.cached.value, panel.machine.value, panel.model.value = 8, 512, "h200", model
    assert "A step takes" in panel.headline.value


def test_it_starts_where_it_is_told_to():
    panel = arithmetic_knobs(batch=100, new_tokens=3, cached=500, machine="a100", model="qwen3-8b", devices=3)
    cost = RooflineCost(model_named("qwen3-8b"), machine_named("a100"), devices=3)
    assert f"{1e3 * cost.seconds_of([(3, 500)] * 100):.3g} ms" in panel.headline.value


def test_an_unknown_start_lists_the_known():
    with pytest.raises(InvalidRequestError, match="h100"):
        arithmetic_knobs(machine="h1000")
    with pytest.raises(InvalidRequestError, match="llama3-8b"):
        arithmetic_knobs(model="llama")
