"""Aborts and failures: the neighbours' tokens are those of a run without, and nothing is left behind."""

from __future__ import annotations

from typing import Any

import pytest
from histories import ANY_MODEL, TEXT_ONLY, naive, play
from textmodel import TextModel

from servelib.request import FinishReason, RequestState, SamplingParams

ENGINES = {**ANY_MODEL, **TEXT_ONLY}
any_engine = pytest.mark.parametrize("name", ENGINES)
STEPS = 14
BAD = 39  # an id that no other prompt holds


def asked(prompt: int, tokens: int, *, first: int = 1) -> tuple[str, tuple[int, ...], SamplingParams, int]:
    ids = (first, *range(2, prompt + 1))
    return "add", ids, SamplingParams(max_tokens=tokens, ignore_eos=True), 1


REQUESTS = [asked(3, 6), asked(9, 5), asked(1, 7), asked(12, 4), asked(5, 1)]


@any_engine
@pytest.mark.parametrize("times", [1, 2])
def test_an_abort_at_any_step_leaves_the_neighbours_as_they_were(name: str, times: int):
    """Waiting, in prefill, in decode, finished; a second time; and of a request that never was."""
    seen_in_decode = seen_waiting = 0
    for victim in range(len(REQUESTS)):
        for step in range(STEPS):
            model = TextModel()
            history: list[Any] = [*REQUESTS, ("step", step), *[("abort", victim), ("abort", 77)] * times]
            seen = play(ENGINES[name](model), history)
            for i, (request_id, request) in enumerate(seen.requests.items()):
                tokens, reason = naive(TextModel(), request)
                if i == victim and request_id in seen.aborted:
                    assert seen.tokens[request_id] == tokens[: len(seen.tokens[request_id])]
                    seen_in_decode += len(seen.tokens[request_id]) > 0
                    seen_waiting += not seen.tokens[request_id]
                else:
                    assert (seen.tokens[request_id], seen.reasons[request_id]) == (tokens, reason)
    assert seen_in_decode > 0
    assert seen_waiting > 0


def check_one_failed(seen: Any, bad: str, error: str, tokens: int) -> None:
    for name, request in seen.requests.items():
        if name == bad:
            assert seen.reasons[name] is FinishReason.ERROR
            assert seen.errors[name] == error
            assert len(seen.tokens[name]) == tokens
        else:
            assert (seen.tokens[name], seen.reasons[name]) == naive(TextModel(), request)
    assert list(seen.errors) == [bad]


@any_engine
@pytest.mark.parametrize("victim", range(len(REQUESTS)))
def test_a_row_that_the_model_cannot_run_fails_alone(name: str, victim: int):
    history: list[Any] = list(REQUESTS)
    kind, ids, sampling, copies = REQUESTS[victim]
    history[victim] = (kind, (BAD, *ids[1:]), sampling, copies)
    seen = play(ENGINES[name](TextModel(breaks=frozenset({BAD}))), history)
    check_one_failed(seen, f"r{victim}", f"RuntimeError: cannot run [{BAD}]", 0)


@pytest.mark.parametrize("name", [name for name in ENGINES if "guessing" not in name])
@pytest.mark.parametrize("after", [0, 1, 3])
def test_a_row_whose_token_cannot_be_chosen_fails_alone(name: str, after: int):
    def fails(state: RequestState) -> None:
        if state.request.request_id == "r2" and len(state.output_ids) == after:
            raise FloatingPointError("no likeliest token")

    seen = play(ENGINES[name](TextModel(fails=fails)), list(REQUESTS))
    check_one_failed(seen, "r2", "FloatingPointError: no likeliest token", after)


@any_engine
def test_an_id_is_free_again_once_its_request_is_over(name: str):
    engine = ENGINES[name](TextModel())
    first = play(engine, [REQUESTS[0], ("step", 2), ("abort", 0)])
    again = play(engine, [REQUESTS[0]])
    assert first.aborted == {"r0"}
    assert again.tokens["r0"] == naive(TextModel(), again.requests["r0"])[0]
