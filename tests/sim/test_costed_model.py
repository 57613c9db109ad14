from __future__ import annotations

import pytest

from servelib.clock import VirtualClock
from servelib.engine.batch import Batch, Row
from servelib.engine.naive import NaiveEngine
from servelib.engine.protocol import Model
from servelib.engine.registry import make_engine
from servelib.model.config import REFERENCE
from servelib.request import Request, RequestState, SamplingParams
from servelib.sim.cost import StepCost
from servelib.sim.machines import machine_named
from servelib.sim.model import CostedModel
from servelib.sim.models import model_named
from servelib.sim.roofline import RooflineCost
from servelib.spans import Stage

COST = StepCost(overhead=1.0, per_token=0.1, per_pair=0.01, per_cached=0.001)


@pytest.mark.parametrize("use_cache", [False, True])
def test_an_engine_runs_unchanged_and_every_step_is_charged(use_cache):
    clock = VirtualClock()
    model: Model = CostedModel(REFERENCE, COST, clock)
    engine = NaiveEngine(model, use_cache=use_cache, clock=clock)
    engine.add_request(Request("a", tuple(range(10)), SamplingParams(max_tokens=3, ignore_eos=True)))
    ends = []
    while engine.has_work:
        engine.step()
        ends.append(clock.now())
    steps = [(10, 0), (1, 10), (1, 11)] if use_cache else [(10, 0), (11, 0), (12, 0)]
    expected = [sum(COST.seconds(*step) for step in steps[: i + 1]) for i in range(3)]
    assert ends == pytest.approx(expected)


def test_a_batch_is_charged_as_one_step():
    clock = VirtualClock()
    engine = make_engine("continuous", CostedModel(REFERENCE, COST, clock), clock)
    for name, prompt in (("a", 10), ("b", 4)):
        engine.add_request(Request(name, tuple(range(prompt)), SamplingParams(max_tokens=2, ignore_eos=True)))
    engine.step()
    assert clock.now() == pytest.approx(COST.seconds_of([(10, 0), (4, 0)]))
    before = clock.now()
    engine.step()
    assert clock.now() - before == pytest.approx(COST.seconds_of([(1, 10), (1, 4)]))


def test_pads_are_charged_like_tokens():
    clock = VirtualClock()
    engine = make_engine("static", CostedModel(REFERENCE, COST, clock), clock)
    for name, prompt in (("a", 10), ("b", 4)):
        engine.add_request(Request(name, tuple(range(prompt)), SamplingParams(max_tokens=2, ignore_eos=True)))
    engine.step()
    engine.step()
    assert clock.now() == pytest.approx(COST.seconds_of([(10, 0)] * 2) + COST.seconds_of([(1, 10)] * 2))


def test_a_piece_of_a_prompt_is_charged_no_output_matrix():
    clock, cost = VirtualClock(), model_on("h100")
    model = CostedModel(cost.config, cost, clock)
    state = RequestState(Request("a", tuple(range(9))))
    model.run(Batch((Row(state, 0, 0, range(5), 0, Stage.PREFILL),)), None)
    assert clock.now() == cost.seconds_of([(5, 0)], sampled=0) < cost.seconds_of([(5, 0)])


def model_on(machine: str) -> RooflineCost:
    return RooflineCost(model_named("llama3-8b"), machine_named(machine))


def test_the_token_is_in_a_small_vocabulary_too():
    clock = VirtualClock()
    tiny = CostedModel(type(REFERENCE)(label="four tokens", vocab_size=4), COST, clock)
    engine = NaiveEngine(tiny, clock=clock)
    engine.add_request(Request("a", (0,), SamplingParams(max_tokens=1, ignore_eos=True)))
    (output,) = engine.step()
    assert 0 <= output.token_ids[0] < 4
