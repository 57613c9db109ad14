"""The roofline, a step's parts and the batch: what the figures show is what was counted."""

from __future__ import annotations

import math

import pytest

from servelib.errors import InvalidRequestError
from servelib.notebook.batch_figure import CONTEXTS, LARGEST, batch_figure, decode_steps, frame_name
from servelib.notebook.figures import PALETTE
from servelib.notebook.render import described
from servelib.notebook.roofline_figures import Spot, roofline, short, step_breakdown
from servelib.sim.count import count
from servelib.sim.machines import machine_named
from servelib.sim.models import model_named
from servelib.sim.roofline import RooflineCost, decode_batch_at_balance


def cost_of(devices: int) -> RooflineCost:
    return RooflineCost(model_named("llama3-70b"), machine_named("h100"), devices=devices)


SERVER = cost_of(8)


def predicted(name: str, phase: str, batch: list[tuple[int, int]]) -> Spot:
    return Spot.of(name, phase, count(SERVER.config, batch), SERVER.seconds_of(batch))


DECODE, PREFILL = predicted("8", "decode", [(1, 500)] * 8), predicted("2048", "prefill", [(2048, 0)])
MEASURED = Spot("8", "decode", DECODE.intensity, 0.5 * DECODE.rate, measured=True)


def the_roofline():
    return roofline(
        SERVER.peak, SERVER.bandwidth, [DECODE, PREFILL, MEASURED], alt="a roof", machine="8 x H100"
    )


def test_a_predicted_spot_lies_below_the_ceilings():
    for spot in (DECODE, PREFILL):
        assert spot.rate <= min(SERVER.peak, SERVER.bandwidth * spot.intensity) * (1 + 1e-12)
    assert DECODE.intensity < SERVER.peak / SERVER.bandwidth < PREFILL.intensity


def test_the_ceilings_meet_at_the_corner_and_carry_their_values():
    fig = the_roofline()
    assert described(fig.to_plotly_json())[0] == "a roof"
    ceilings, corner = fig.data[:2]
    balance = SERVER.peak / SERVER.bandwidth
    assert (ceilings.x[1], ceilings.y[1], ceilings.y[2]) == (balance, SERVER.peak, SERVER.peak)
    assert ceilings.y[0] == pytest.approx(SERVER.bandwidth * ceilings.x[0])
    assert corner.x == (balance, balance)
    words = " ".join(a.text for a in fig.layout.annotations)
    for said in ("26.8 TB/s", "8 x H100", "7.92 P operations/s", "295 operations a byte"):
        assert said in words
    assert (fig.layout.xaxis.type, fig.layout.yaxis.type) == ("log", "log")
    assert "operations per byte" in fig.layout.xaxis.title.text
    assert "operations per second" in fig.layout.yaxis.title.text


def test_phases_differ_in_symbol_and_colour_and_what_was_measured_is_filled():
    looks = {t.name: (t.marker.symbol, t.marker.color) for t in the_roofline().data[2:]}
    assert looks == {
        "prefill, predicted": ("square-open", PALETTE["orange"]),
        "decode, measured": ("circle", PALETTE["blue"]),
        "decode, predicted": ("circle-open", PALETTE["blue"]),
    }


def test_a_name_is_written_once():
    written = [text for trace in the_roofline().data[2:] for text in trace.text if text]
    assert sorted(written) == ["2048", "8"]


def test_every_spot_lies_inside_the_axes():
    far = [Spot("far", "decode", 1e-3, 1e6), Spot("near", "prefill", 1e6, SERVER.peak)]
    fig = roofline(SERVER.peak, SERVER.bandwidth, far, alt="a", machine="m")
    for spot in far:
        for value, axis in ((spot.intensity, fig.layout.xaxis), (spot.rate, fig.layout.yaxis)):
            assert axis.range[0] < math.log10(value) < axis.range[1]
    assert len(roofline(1e11, 1e10, alt="a", machine="m").data) == 2


@pytest.mark.parametrize(
    ("value", "said"), [(989.4e12, "989 T"), (3.35e12, "3.35 T"), (1.5e15, "1.5 P"), (12.0, "12 ")]
)
def test_short(value, said):
    assert short(value) == said


def test_the_longer_time_of_a_part_is_solid_and_labelled():
    parts = SERVER.parts([(1, 2047)] * 400)
    fig = step_breakdown(parts, alt="parts")
    bars = {t.name: t for t in fig.data if not t.showlegend and len(t.y) > 1}
    assert set(bars) == {"computing", "moving"}
    assert {part.bound for part in parts} == {"compute", "memory"}
    assert len({bar.marker.line.color for bar in bars.values()}) == 2
    for i, part in enumerate(parts):
        for bound, word in (("compute", "computing"), ("memory", "moving")):
            bar, longer = bars[word], part.bound == bound
            seconds = part.computing if bound == "compute" else part.moving
            assert bar.x[i] == pytest.approx(1e3 * seconds)
            assert (bar.marker.color[i] == bar.marker.line.color) is longer
            assert bool(bar.text[i]) is longer
    assert bars["moving"].text[0] == "< 0.001 ms"  # the embedding
    assert "ms" in fig.layout.xaxis.title.text
    assert [t.name for t in fig.data if t.showlegend is not False] == ["computing", "moving"]
    patterns = {t.name: t.marker.pattern.shape for t in fig.data if t.showlegend is not False}
    assert patterns["computing"] != patterns["moving"]  # told apart without colour


@pytest.mark.parametrize(("batch", "unit"), [([(1, 0)], "ms"), ([(16_384, 0)] * 64, "s")])
def test_the_unit_fits_the_step(batch, unit):
    assert f"({unit})" in step_breakdown(SERVER.parts(batch), alt="a").layout.xaxis.title.text


def test_a_step_without_parts_is_refused():
    with pytest.raises(ValueError, match="at least one"):
        step_breakdown([], alt="a")


def test_decode_steps_end_at_the_last_batch_that_fits():
    steps = decode_steps(SERVER, 2048)
    assert steps[-1].batch == SERVER.cache_tokens // 2048
    assert [s.batch for s in steps] == sorted({s.batch for s in steps})
    assert steps[0].batch == 1
    ms, rate, price = steps[-1].shown
    assert ms == pytest.approx(1e3 * SERVER.seconds_of([(1, 2047)] * steps[-1].batch))
    assert rate == pytest.approx(1e3 * steps[-1].batch / ms)
    assert price == pytest.approx(8e3 / rate)
    assert decode_steps(SERVER, 16)[-1].batch == LARGEST


def test_a_context_that_cannot_be():
    with pytest.raises(InvalidRequestError, match=r"Llama 3\.1 70B"):
        decode_steps(SERVER, 131_073)
    with pytest.raises(InvalidRequestError, match="context"):
        decode_steps(SERVER, 0)
    assert decode_steps(cost_of(2), 131_072) == []
    assert "not one sequence fits" in frame_name(cost_of(2), 131_072, [])


def test_a_frame_a_context_moves_lines_and_ends():
    fig = batch_figure(SERVER, alt="what a batch buys", start=1024)
    alt, label, initial = described(fig.to_plotly_json())
    assert (alt, label, CONTEXTS[initial]) == ("what a batch buys", "context of each sequence", 1024)
    assert len(fig.frames) == len(CONTEXTS)
    for context, frame in zip(CONTEXTS, fig.frames, strict=True):
        steps = decode_steps(SERVER, context)
        fit = SERVER.cache_tokens // context
        assert f"{context:,} tokens: {fit:,} sequences fit" in frame.name
        assert len(frame.data) == len(frame.traces) == 6
        for i in range(3):
            line, end = frame.data[2 * i], frame.data[2 * i + 1]
            assert list(line.y) == [step.shown[i] for step in steps]
            assert list(end.x) == ([fit] if fit <= LARGEST else [])
            axis = fig.layout[f"yaxis{i + 1 if i else ''}"]
            low, high = axis.range
            assert all(low < math.log10(y) < high for y in line.y)
            assert axis.title.text
    assert list(fig.data[0].y) == list(fig.frames[initial].data[0].y)
    assert [fig.data[i].mode for i in fig.frames[0].traces] == ["lines", "markers"] * 3
    assert "sequences in a step" in fig.layout.xaxis3.title.text


def test_the_balance_is_marked_in_each_panel():
    fig = batch_figure(SERVER, alt="a")
    balance = decode_batch_at_balance(SERVER)
    marks = fig.data[6:]
    assert [mark.x for mark in marks] == [(balance, balance)] * 3
    assert str(balance) in marks[0].name
    assert [mark.showlegend for mark in marks] == [True, False, False]


def test_even_where_nothing_fits_there_is_a_figure():
    fig = batch_figure(cost_of(2), alt="a", contexts=(131_072,), start=131_072)
    assert all(len(trace.x) == 0 for trace in fig.frames[0].data)


def test_a_context_that_is_no_frame_cannot_be_shown_first():
    with pytest.raises(ValueError, match="3000"):
        batch_figure(SERVER, alt="a", start=3000)
