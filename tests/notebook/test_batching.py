"""Chapter 6's figures and panel: what they show is what the engines did."""

from __future__ import annotations

import itertools
import math
import statistics

import pytest
import torch

from servelib.clock import VirtualClock
from servelib.engine.registry import make_engine
from servelib.engine.static import StaticEngine
from servelib.harness.drive import drive
from servelib.harness.sweep import sweep
from servelib.harness.trace import Workload
from servelib.model.config import ModelConfig
from servelib.model.scripted import ScriptedModel
from servelib.model.tinygpt import TinyGPT
from servelib.notebook.batch_knobs import batch_knobs
from servelib.notebook.batching_figures import by_how_many, steps_by_batch, waste_by_batch
from servelib.notebook.render import described
from servelib.notebook.slot_watch import watch
from servelib.notebook.slots_figure import moment, slots_over_time
from servelib.request import Request, SamplingParams
from servelib.sim.cost import StepCost, reference_cost
from servelib.sim.model import CostedModel

COST = reference_cost()
SMALL = ModelConfig("small", width=32, layers=2, heads=4, kv_heads=2, head_size=8, ffn_size=48, context=256)
MODEL = TinyGPT(SMALL)
TRACE = Workload(requests=12).trace(60)
WAIT = 20.0  # bound of every wait: reached only when something is broken


@pytest.fixture(scope="module")
def runs():
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield {
        "cached": watch("cached", MODEL, COST, TRACE),
        "static": watch("static", MODEL, COST, TRACE, batch_size=4),
        "continuous": watch("continuous", MODEL, COST, TRACE, max_num_seqs=4),
    }
    torch.set_num_threads(before)


@pytest.mark.parametrize("name", ["cached", "static", "continuous"])
def test_no_place_is_held_twice_and_every_request_is_seen_whole(runs, name):
    watched = runs[name]
    by_place = {}
    for piece in watched.pieces:
        by_place.setdefault(piece.place, []).append(piece)
    for pieces in by_place.values():
        pieces.sort(key=lambda piece: piece.start)
        for one, other in itertools.pairwise(pieces):
            assert one.end <= other.start + 1e-12
    for record in watched.run.requests:
        mine = [piece for piece in watched.pieces if piece.request_id == record.request_id]
        (prompt,) = (piece for piece in mine if piece.kind == "prompt")
        (answer,) = (piece for piece in mine if piece.kind == "answer")
        # On the run's clock: its first token ends the prompt, its last one the answer.
        assert prompt.end == pytest.approx(record.events[0][0])
        assert answer.end == pytest.approx(record.events[-1][0])
        assert len({piece.place for piece in mine}) == 1
        assert len(watched.tokens[record.request_id]) == record.requested_tokens


def test_every_engine_gives_the_same_tokens_and_one_wastes_nothing(runs):
    assert not any(piece.wasted for piece in runs["continuous"].pieces)
    assert runs["static"].tokens == runs["cached"].tokens == runs["continuous"].tokens


def test_the_waste_that_is_drawn_is_the_waste_that_the_engine_counts():
    class Everyone:
        """Charges the same for each step, so that time counts steps."""

        provenance = "one second a step"

        def seconds(self, new, cached=0):
            return 1.0

        def seconds_of(self, batch, *, sampled=None):
            return 1.0

    engine = StaticEngine(ScriptedModel([65]), 4)
    for request in TRACE.requests:
        engine.add_request(_asked(request))
    while engine.has_work:
        engine.step()
    at_once = Workload(requests=12, arrivals=lambda rate: _AtOnce()).trace(1.0)
    drawn = watch("static", MODEL, Everyone(), at_once, batch_size=4).pieces
    assert sum(p.end - p.start for p in drawn if p.kind == "finished") == engine.waste.finished
    assert sum(p.end - p.start for p in drawn if p.kind == "answer") == engine.waste.decodes


class _AtOnce:
    label = "at once"

    def times(self, n, rng):
        return [0.0] * n


def _asked(wanted):
    sampling = SamplingParams(max_tokens=wanted.output_tokens, ignore_eos=True)
    return Request(wanted.request_id, wanted.prompt_ids, sampling)


def test_the_picture_goes_through_time(runs):
    shown = {name: runs[name] for name in ("static", "continuous")}
    fig = slots_over_time(shown, alt="slots")
    assert described(fig.to_plotly_json()) == ("slots", "time", len(fig.frames) - 1)
    whole = fig.frames[-1].data
    for trace, last in zip(fig.data, whole, strict=True):  # the last is shown first
        assert list(trace.x) == list(last.x)
    for kind, name in ((0, "static"), (5, "continuous")):
        held = sum(piece.end - piece.start for piece in runs[name].pieces)
        bars = [x for trace in whole[kind : kind + 3] for x in trace.x]
        assert sum(bars) == pytest.approx(1e3 * held)
    drawn = [sum(x or 0 for trace in frame.data[:3] for x in trace.x) for frame in fig.frames]
    assert drawn == sorted(drawn)
    # Told apart without colour: pattern and letter.
    patterns = [trace.marker.pattern.shape for trace in fig.data[:3]]
    assert len(set(patterns)) == 3
    assert sorted(whole[3].text) == list("ABCDEFGHIJKL")
    assert len({frame.name for frame in fig.frames}) == len(fig.frames)


def test_a_moment_in_words(runs):
    letters = {record.request_id: chr(65 + i) for i, record in enumerate(runs["static"].run.requests)}
    shown = {name: runs[name] for name in ("static", "continuous")}
    b, c = (runs["static"].run.requests[i] for i in (1, 2))
    assert b.output_tokens < c.output_tokens  # B is done first, and must stay
    between = (b.events[-1][0] + c.events[-1][0]) / 2
    said = moment(shown, between, letters)
    arrived = [letters[r.request_id] for r in runs["static"].run.requests if r.sent <= between]
    waits = " ".join(arrived[3:])
    assert said.startswith(f"{1e3 * between:.0f} ms. static: C runs, 1 finished row kept, {waits} wait")
    assert "; continuous: " in said
    assert moment(shown, 0.001, letters) == "1 ms. static: nobody runs; continuous: nobody runs"


def test_pictures_must_be_of_one_trace(runs):
    other = watch("cached", MODEL, COST, Workload(requests=3, seed=8).trace(9))
    with pytest.raises(ValueError, match="one trace"):
        slots_over_time({"a": runs["static"], "b": other}, alt="a")
    many = watch("cached", MODEL, COST, Workload(requests=27).trace(9))
    with pytest.raises(ValueError, match="at most 26"):
        slots_over_time({"a": many}, alt="a")


def test_a_step_for_all_beside_a_step_for_each():
    seen = {1: [0.002, 0.003, 0.002], 4: [0.004, 0.004, 0.005]}
    fig = steps_by_batch(seen, alt="steps")
    together, each, rate = fig.data
    assert list(together.y) == pytest.approx([2.0, 4.0])
    assert list(each.y) == pytest.approx([2.0, 8.0])
    assert list(rate.y) == pytest.approx([500, 1000])
    assert together.error_y.array[0] == pytest.approx(
        1e3 * (statistics.quantiles(seen[1], n=4)[2] - 0.002), abs=1e-9
    )


def test_waste_predicted_as_lines_and_counted_as_marks():
    predicted = {"even": {1: 0.0, 8: 0.0}, "wide": {1: 0.0, 8: 0.4}}
    fig = waste_by_batch(predicted, {"even": {8: 0.0}, "wide": {8: 0.41}}, alt="waste")
    lines = [trace for trace in fig.data if trace.mode == "lines"]
    marks = [trace for trace in fig.data if trace.mode == "markers"]
    assert [list(trace.y) for trace in lines] == [[0, 0], [0, 40]]
    assert [list(trace.y) for trace in marks] == [[0], [pytest.approx(41)]]
    assert len({trace.line.dash for trace in lines}) == len({trace.marker.symbol for trace in marks}) == 2


def test_a_frame_for_how_many_at_once():
    def points(name, **options):
        def engine(clock):
            return make_engine(name, CostedModel(SMALL, COST, clock), clock, **options)

        return sweep(engine, Workload(requests=8), [8, 64], runs=1, clock="virtual")

    curves = {
        n: {"static": points("static", batch_size=n), "continuous": points("continuous", max_num_seqs=n)}
        for n in (1, 8)
    }
    fig = by_how_many(curves, alt="how many", start=8)
    _, label, first = described(fig.to_plotly_json())
    assert "at once" in label
    assert first == 1
    for frame, size in zip(fig.frames, curves, strict=True):
        assert frame.name.startswith(f"{size} at once: goodput of 90% or more: static up to 64 req/s")
        for trace, (metric, name) in zip(
            frame.data,
            [(m, n) for m in ("ttft_p99", "gap_p99", "goodput_fraction") for n in ("static", "continuous")],
            strict=True,
        ):
            assert list(trace.y) == [getattr(p.summary, metric).value for p in curves[size][name]]
    missed = by_how_many(curves, alt="a", start=1, target=1.1).frames[0].name
    assert missed.endswith("static at none of the rates, continuous at none of the rates")


def test_the_panel_answers_each_knob():
    panel = batch_knobs(ScriptedModel([65], SMALL), COST, requests=8, runs=1, rate=64)
    said = {panel.headline.value}
    for knob, value in (("max_num_seqs", 1), ("rate", 128), ("engine", "static"), ("batch_size", 2)):
        getattr(panel, knob).value = value
        assert panel.headline.value not in said, knob
        said.add(panel.headline.value)
    # Only what the engine has can be turned.
    assert (panel.max_num_seqs.disabled, panel.tokens.disabled, panel.batch_size.disabled) == (
        True,
        True,
        False,
    )
    panel.engine.value, panel.max_num_seqs.value, panel.tokens.value = "continuous", 64, 128
    assert (panel.max_num_seqs.disabled, panel.batch_size.disabled) == (False, True)
    assert dict(panel.setting.options) == {"max_num_seqs": 64, "max_num_batched_tokens": 128}
    panel.output.value = (2, 3)
    assert "At 128 requests/s" in panel.headline.value
    assert math.isfinite(panel.figure.widget.data[0].y[0])


def test_the_panel_measures_for_real_and_stops():
    panel = batch_knobs(ScriptedModel([65], SMALL), StepCost(0.002), requests=4, runs=2, rate=128)
    panel.output.value = (1, 2)
    panel.start()
    run = panel._run
    run.join(WAIT)
    assert not run.is_alive()
    assert panel.status.value.count("Measured, 2 runs: At 128 requests/s") == 1
    assert list(panel.figure.widget.data[2].x) == [128]
    panel.engine.value = "cached"  # another setting: nothing was measured there
    assert not panel.figure.widget.data[2].x
    panel.rate.value = 1
    panel.start()
    assert panel.running
    assert panel.stop(wait=WAIT)
    assert not panel.running
    panel.close()


def test_watching_changes_nothing(runs):
    clock = VirtualClock()
    engine = make_engine("continuous", CostedModel(SMALL, COST, clock), clock, max_num_seqs=4)
    plain = drive(engine, TRACE, clock)
    assert [r.events for r in plain.requests] == [r.events for r in runs["continuous"].run.requests]
