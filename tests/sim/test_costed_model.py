from __future__ import annotations

import pytest

from servelib.clock import VirtualClock
from servelib.engine.naive import NaiveEngine
from servelib.engine.protocol import Model
from servelib.model.config import REFERENCE
from servelib.request import Request, SamplingParams
from servelib.sim.cost import StepCost
from servelib.sim.model import CostedModel

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


def test_the_token_is_in_a_small_vocabulary_too():
    clock = VirtualClock()
    tiny = CostedModel(type(REFERENCE)(label="four tokens", vocab_size=4), COST, clock)
    engine = NaiveEngine(tiny, clock=clock)
    engine.add_request(Request("a", (0,), SamplingParams(max_tokens=1, ignore_eos=True)))
    (output,) = engine.step()
    assert 0 <= output.token_ids[0] < 4
