from __future__ import annotations

import math
import subprocess
import sys
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from servelib.errors import InvalidRequestError
from servelib.request import (
    FinishReason,
    Request,
    RequestState,
    RequestStatus,
    SampledToken,
    SamplingParams,
    StepOutput,
    seed_from,
)

NOT_NUMBERS: list[Any] = ["1", None, [], (), {}, True, False, 1j, b"1", object()]
NOT_FINITE: list[Any] = [math.nan, math.inf, -math.inf, 10**400, -(10**400), 10**5000]

BAD: dict[str, list[Any]] = {
    "max_tokens": [0, -1, 1.5, 1.0, math.nan, math.inf, *NOT_NUMBERS],
    "min_tokens": [-1, 17, 1.5, math.nan, *NOT_NUMBERS],
    "temperature": [-1e-9, -1, *NOT_FINITE, *NOT_NUMBERS],
    "top_k": [-1, 1.5, math.nan, math.inf, *NOT_NUMBERS],
    "top_p": [0, 0.0, -0.1, 1.0000001, 2, *NOT_FINITE, *NOT_NUMBERS],
    "min_p": [-0.1, 1.1, *NOT_FINITE, *NOT_NUMBERS],
    "presence_penalty": [-2.1, 2.1, *NOT_FINITE, *NOT_NUMBERS],
    "frequency_penalty": [-2.1, 2.1, *NOT_FINITE, *NOT_NUMBERS],
    "repetition_penalty": [0, 0.0, -1.0, 1e-320, 1e308, *NOT_FINITE, *NOT_NUMBERS],
    "logit_bias": [None, [], 3, "a", [(1, 2.0)], {-1: 1.0}, {"1": 1.0}, {1.0: 1.0}, {True: 1.0},
                   {1: math.nan}, {1: math.inf}, {1: 100.1}, {1: -100.1}, {1: "x"}, {1: None}, {1: True}],
    "logprobs": [-1, 21, 1.5, math.nan, True, "1", []],
    "stop": [None, "end", ["end"], ("",), ("a", ""), (1,), (None,), (b"a",)],
    "stop_token_ids": [None, 1, [1], "1", (-1,), (1.0,), (True,), ("1",), (None,)],
    "ignore_eos": [None, 0, 1, "true", []],
    "seed": [-(2**63) - 1, 2**64, 1.5, math.nan, True, "1", []],
}  # fmt: skip


CASES = [(field, value, f"{field}-{i}") for field, values in BAD.items() for i, value in enumerate(values)]


@pytest.mark.parametrize(("field", "value"), [case[:2] for case in CASES], ids=[case[2] for case in CASES])
def test_a_bad_option_is_refused_by_name(field: str, value: Any):
    with pytest.raises(InvalidRequestError) as caught:
        SamplingParams(**{field: value})
    error = caught.value
    assert error.field == field
    assert str(error).startswith(f"{field}: got ")
    assert error.limit in str(error)
    if field not in ("logit_bias", "stop", "stop_token_ids"):  # those name the item at fault
        assert error.value is value


def test_every_option_has_its_bad_values():
    assert set(BAD) == set(SamplingParams.__dataclass_fields__)


GOOD: list[dict[str, Any]] = [
    {},
    {"max_tokens": 1}, {"max_tokens": 5, "min_tokens": 5},
    {"temperature": 0}, {"temperature": 1e-4}, {"temperature": 5e-324}, {"temperature": 1e300},
    {"top_k": 0}, {"top_k": 10**400}, {"top_p": 1}, {"top_p": 1e-9}, {"min_p": 0}, {"min_p": 1},
    {"presence_penalty": -2}, {"presence_penalty": 2.0}, {"frequency_penalty": -2.0},
    {"repetition_penalty": 1e-3}, {"repetition_penalty": 1e3},
    {"logit_bias": {0: 100, 5: -100.0}}, {"logprobs": 0}, {"logprobs": 20},
    {"stop": ("a", "b")}, {"stop_token_ids": (0, 1)}, {"ignore_eos": True},
    {"seed": 0}, {"seed": 2**64 - 1}, {"seed": -(2**63)},
]  # fmt: skip


@pytest.mark.parametrize("options", GOOD, ids=repr)
def test_a_value_at_its_limit_is_accepted(options: dict[str, Any]):
    params = SamplingParams(**options)
    assert {name: getattr(params, name) for name in options} == options


def test_the_error_says_what_to_do():
    with pytest.raises(InvalidRequestError) as caught:
        SamplingParams(max_tokens=4, min_tokens=9)
    assert str(caught.value) == "min_tokens: got 9, must be an integer from 0 to 4 (max_tokens)"
    assert isinstance(caught.value, ValueError)


def test_a_long_value_is_cut_in_the_message():
    with pytest.raises(InvalidRequestError) as caught:
        SamplingParams(temperature="x" * 10_000)  # type: ignore[arg-type]
    assert len(str(caught.value)) < 200


@pytest.mark.parametrize("request_id", ["", None, 3, b"a"])
def test_a_request_needs_a_name(request_id: Any):
    with pytest.raises(InvalidRequestError, match="request_id"):
        Request(request_id, (1,))


@pytest.mark.parametrize("prompt", [(), [], [1], None, "abc", 5])
def test_a_prompt_is_a_tuple_with_something_in_it(prompt: Any):
    with pytest.raises(InvalidRequestError) as caught:
        Request("a", prompt)
    assert caught.value.field == "prompt"


@pytest.mark.parametrize(
    ("prompt", "options", "field"),
    [
        ((10,), {}, "prompt"),
        ((-1,), {}, "prompt"),
        ((1, 2, 10), {}, "prompt"),
        ((1.0,), {}, "prompt"),
        ((True,), {}, "prompt"),
        (("1",), {}, "prompt"),
        ((None,), {}, "prompt"),
        ((1,), {"stop_token_ids": (3, 10)}, "stop_token_ids"),
        ((1,), {"logit_bias": {10: 1.0}}, "logit_bias"),
        ((1,) * 20, {"max_tokens": 1}, "prompt"),
        ((1,) * 21, {"max_tokens": 1}, "prompt"),
        ((1,) * 10, {"max_tokens": 11}, "max_tokens"),
        ((1,), {"max_tokens": 10**30}, "max_tokens"),
    ],
)
def test_what_a_model_can_never_serve_is_refused(prompt: Any, options: dict[str, Any], field: str):
    request = Request("a", prompt, SamplingParams(**({"max_tokens": 2} | options)))
    with pytest.raises(InvalidRequestError) as caught:
        request.check_against(vocab_size=10, context=20)
    assert caught.value.field == field
    assert any(number in caught.value.limit for number in ("9", "19", "20", "10"))


def test_the_whole_context_can_be_used():
    Request("a", (9,) * 19, SamplingParams(max_tokens=1)).check_against(vocab_size=10, context=20)
    Request("a", (0,), SamplingParams(max_tokens=19)).check_against(vocab_size=10, context=20)


def test_a_prompt_far_too_long_is_refused_unread():
    class Unreadable(tuple):
        __slots__ = ()

        def __iter__(self):
            raise AssertionError("the tokens were read")

    with pytest.raises(InvalidRequestError, match="3 tokens"):
        Request("a", Unreadable((1, 2, 3))).check_against(vocab_size=10, context=2)


def state_of(eos_id: int | None = 9, **options: Any) -> RequestState:
    return RequestState(Request("a", (1, 2), SamplingParams(**options)), eos_id=eos_id)


def test_a_state_ends_at_its_budget():
    state = state_of(max_tokens=2)
    assert state.status is RequestStatus.WAITING
    assert state.append(5) is None
    assert state.append(6) is FinishReason.LENGTH
    assert state.status is RequestStatus.FINISHED
    assert state.all_ids == [1, 2, 5, 6]
    with pytest.raises(RuntimeError, match="finished"):
        state.append(7)
    assert state.output_ids == [5, 6]


def test_an_end_token_on_the_last_place_is_a_stop():
    assert state_of(max_tokens=1).append(9) is FinishReason.STOP


@pytest.mark.parametrize(
    ("options", "ends"),
    [
        ({}, {9}),
        ({"stop_token_ids": (3, 3)}, {3, 9}),
        ({"ignore_eos": True}, set()),
        ({"ignore_eos": True, "stop_token_ids": (9,)}, {9}),  # named outright, it stands
        ({"eos_id": None}, set()),
    ],
)
def test_which_tokens_end_a_request(options: dict[str, Any], ends: set[int]):
    assert state_of(**options).end_ids == ends


@given(
    tokens=st.lists(st.integers(0, 9), min_size=40, max_size=40),
    max_tokens=st.integers(1, 30),
    least=st.integers(0, 30),
    stops=st.sets(st.integers(0, 9), max_size=3),
    ignore_eos=st.booleans(),
)
def test_where_a_request_ends(
    tokens: list[int], max_tokens: int, least: int, stops: set[int], ignore_eos: bool
):
    least = min(least, max_tokens)
    state = state_of(
        max_tokens=max_tokens, min_tokens=least, stop_token_ids=tuple(stops), ignore_eos=ignore_eos
    )
    for token in tokens:
        if state.append(token):
            break
    ends = stops | (set() if ignore_eos else {9})
    first = next((i for i, token in enumerate(tokens) if i >= least and token in ends), math.inf)
    assert len(state.output_ids) == min(first + 1, max_tokens)
    assert state.finish_reason is (FinishReason.STOP if first < max_tokens else FinishReason.LENGTH)


def test_the_first_reason_wins():
    state = state_of()
    state.finish(FinishReason.ABORT)
    state.finish(FinishReason.ERROR)
    assert state.finish_reason is FinishReason.ABORT


def test_states_are_the_same_only_if_they_are_one():
    assert state_of() != state_of()
    assert len({state_of(), state_of()}) == 2


def test_seeds_come_from_the_request_or_from_its_id():
    assert state_of(seed=0).seed == 0
    assert state_of(seed=-1).seed == 2**64 - 1
    assert state_of().seed == seed_from("a")
    assert len({seed_from(f"r{i}") for i in range(10_000)}) == 10_000
    assert 0 <= seed_from("\ud800") < 2**64  # a lone surrogate is still a name


def test_a_seed_is_the_same_in_every_process():
    code = "from servelib.request import seed_from; print(seed_from('r-1'))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert int(done.stdout) == seed_from("r-1")


def test_an_output_gives_its_ids():
    tokens = (SampledToken(3), SampledToken(4, -0.5, ((4, -0.5),)))
    assert StepOutput("a", tokens).token_ids == (3, 4)
    assert StepOutput("a", (), FinishReason.ABORT).token_ids == ()


def test_options_that_ban_every_token_are_refused():
    def check(ids: range, **options: Any) -> None:
        sampling = SamplingParams(stop_token_ids=tuple(ids), **options)
        Request("a", (0,), sampling).check_against(vocab_size=10, context=100)

    check(range(10))  # the first token ends it, and may be any
    check(range(8), min_tokens=1)  # the end token may be a ninth
    with pytest.raises(InvalidRequestError, match=r"^stop_token_ids: got '9 ids', must be fewer than 9"):
        check(range(9), min_tokens=1)
