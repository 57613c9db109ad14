from __future__ import annotations

import pytest

from servelib.model.scripted import ScriptedModel
from servelib.request import Request, RequestState, SamplingParams


def state_after(output: list[int], logprobs: int | None = None) -> RequestState:
    state = RequestState(Request("a", (1,), SamplingParams(logprobs=logprobs)))
    state.output_ids = output
    return state


def test_a_list_is_read_in_order_and_its_last_token_repeats():
    model = ScriptedModel([7, 8])
    assert [model.sample(None, state_after([0] * n)).token_id for n in range(4)] == [7, 8, 8, 8]


def test_a_function_sees_the_state_and_may_raise():
    model = ScriptedModel(lambda state: 100 + len(state.output_ids))
    assert model.sample(None, state_after([1, 2])).token_id == 102

    def fail(state: RequestState) -> int:
        raise RuntimeError("scripted failure")

    with pytest.raises(RuntimeError, match="scripted failure"):
        ScriptedModel(fail).sample(None, state_after([]))


def test_an_empty_script_is_refused():
    with pytest.raises(ValueError, match="at least one"):
        ScriptedModel([])


def test_logprobs_come_only_when_asked_for():
    model = ScriptedModel([7])
    assert model.sample(None, state_after([])).logprob is None
    assert model.sample(None, state_after([], logprobs=1)).top == ((7, 0.0),)


def test_it_notes_what_a_model_would_have_run():
    model = ScriptedModel([7])
    cache = model.new_cache()
    model.next_logits([1, 2, 3], cache)
    model.next_logits([4], cache)
    model.next_logits([1, 2, 3, 4])
    assert model.calls == [(3, 0), (1, 3), (4, 0)]
