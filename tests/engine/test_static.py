"""What is static about the static engine: who starts when, who holds a place, and what that wastes."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from textmodel import SMALL, TextModel

from servelib.engine.static import StaticEngine, Waste
from servelib.model.scripted import ScriptedModel
from servelib.request import Request, RequestState, SamplingParams


def ask(name: str, prompt: int, tokens: int) -> Request:
    return Request(name, (1,) * prompt, SamplingParams(max_tokens=tokens, ignore_eos=True))


def steps(engine: StaticEngine) -> list[list[str]]:
    """Who got a token in each step."""
    found = []
    while engine.has_work:
        found.append([output.request_id for output in engine.step()])
    return found


def engine_of(size: int, *requests: Request, model: Any = None) -> StaticEngine:
    engine = StaticEngine(model or ScriptedModel([9]), size)
    for request in requests:
        engine.add_request(request)
    return engine


def test_nobody_joins_before_everybody_has_left():
    engine = engine_of(2, ask("a", 3, 1), ask("b", 2, 4), ask("c", 1, 2), ask("d", 1, 1), ask("e", 1, 1))
    assert steps(engine) == [["a", "b"], ["b"], ["b"], ["b"], ["c", "d"], ["c"], ["e"]]


def test_what_the_model_runs_and_what_of_it_was_wasted_by_hand():
    engine = engine_of(3, ask("a", 5, 1), ask("b", 2, 3), ask("c", 4, 2))
    steps(engine)
    assert engine.model.steps == [[(5, 0)] * 3, [(1, 5)] * 3, [(1, 6)] * 3]
    assert engine.waste == Waste(prompts=11, padding=4, decodes=3, finished=3)
    assert (engine.waste.used, engine.waste.wasted) == (14, 7)
    assert engine.waste.share == 1 / 3
    assert Waste().share == 0.0


@settings(deadline=None, derandomize=True, max_examples=60)
@given(st.lists(st.tuples(st.integers(1, 12), st.integers(1, 9)), min_size=1, max_size=20), st.integers(1, 6))
def test_the_waste_follows_from_the_lengths(lengths: list[tuple[int, int]], size: int):
    engine = engine_of(size, *[ask(str(i), *each) for i, each in enumerate(lengths)])
    steps(engine)
    padding = finished = 0
    for start in range(0, len(lengths), size):
        batch = lengths[start : start + size]
        padding += sum(max(p for p, _ in batch) - p for p, _ in batch)
        finished += sum(max(n for _, n in batch) - n for _, n in batch)
    assert engine.waste.prompts == sum(p for p, _ in lengths)
    assert engine.waste.decodes == sum(n - 1 for _, n in lengths)
    assert (engine.waste.padding, engine.waste.finished) == (padding, finished)


def test_an_aborted_row_keeps_its_place_until_the_batch_ends():
    engine = engine_of(2, ask("a", 3, 9), ask("b", 3, 4), ask("c", 1, 1))
    engine.step()
    engine.abort("a")
    assert [output.request_id for output in engine.step()] == ["b"]
    assert engine.model.steps[-1] == [(1, 3), (1, 3)]
    assert steps(engine) == [["b"], ["b"], ["c"]]
    assert engine.waste.finished == 3


def test_a_batch_of_which_all_are_aborted_is_over_at_once():
    engine = engine_of(2, ask("a", 3, 9), ask("b", 3, 9))
    engine.step()
    engine.abort("a")
    engine.abort("b")
    assert not engine.has_work
    assert engine.step() == []


def test_a_batch_takes_no_more_than_fits_the_context_together():
    long_prompt, long_answer = ask("a", SMALL.context - 2, 2), ask("b", 2, SMALL.context - 2)
    engine = engine_of(8, long_prompt, long_answer, ask("c", 2, 2), model=TextModel())
    assert steps(engine)[:3] == [["a"], ["a"], ["b", "c"]]


def test_after_a_failure_the_others_form_a_batch_again():
    def fails(state: RequestState) -> None:
        if state.request.request_id == "bad":
            raise FloatingPointError("no likeliest token")

    model = TextModel(fails=fails)
    engine = engine_of(3, ask("a", 2, 4), ask("bad", 3, 4), ask("b", 5, 4), model=model)
    assert [output.request_id for output in engine.step() if output.error] == ["bad"]
    assert steps(engine) == [["a", "b"]] * 3
    assert model.padded == [3, 2, 2, 2]


def test_a_size_below_one_is_refused():
    with pytest.raises(ValueError, match="batch size"):
        StaticEngine(ScriptedModel([1]), 0)
