from __future__ import annotations

import math
from collections import Counter
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from servelib.model.sampling import sample, sample_batch
from servelib.request import Request, RequestState, SamplingParams

V = 12
LOGITS = torch.randn(V, generator=torch.Generator().manual_seed(4)) * 2


def state(
    output: list[int] | None = None, prompt: tuple[int, ...] = (1,), eos: int | None = None, **options: Any
):
    options = {"max_tokens": 100, "seed": 0} | options
    made = RequestState(Request("a", prompt, SamplingParams(**options)), eos_id=eos)
    made.output_ids = list(output or [])
    return made


def pick(logits: Any, output: list[int] | None = None, **options: Any) -> int:
    return sample(torch.as_tensor(logits, dtype=torch.float32), state(output, **options)).token_id


def frequencies(n: int = 4000, logits: torch.Tensor = LOGITS, **options: Any) -> Counter[int]:
    rows = logits.expand(n, V)
    tokens = sample_batch(rows, [state(seed=seed, **options) for seed in range(n)])
    return Counter(token.token_id for token in tokens)


def assert_drawn_from(probs: torch.Tensor, seen: Counter[int]) -> None:
    n = sum(seen.values())
    alive = [i for i in range(V) if probs[i] > 0]
    assert set(seen) <= set(alive)
    expected = np.array([float(probs[i]) for i in alive]) * n
    result = stats.chisquare([seen[i] for i in alive], expected * n / expected.sum())
    assert result.pvalue > 1e-3


@given(st.lists(st.integers(-3, 3), min_size=2, max_size=40))
@settings(deadline=None, derandomize=True)
def test_greedy_takes_the_lowest_id_of_the_likeliest(values: list[int]):
    first = values.index(max(values))
    assert pick(values) == first
    assert pick(values, logprobs=1) == first  # the long way round
    assert pick(values, logit_bias={0: 0.0}) == first


@pytest.mark.parametrize("size", [260, 1000, 32_000, 128_256])
def test_ties_in_large_vocabularies(size: int):
    logits = torch.zeros(size)
    logits[[size - 1, size // 2, size // 3]] = 5.0
    assert pick(logits) == size // 3
    assert pick(logits, logprobs=2) == size // 3
    assert sample_batch(logits.expand(3, size), [state() for _ in range(3)])[2].token_id == size // 3


@pytest.mark.parametrize("temperature", [0.3, 1.0, 2.5])
def test_temperature(temperature: float):
    assert_drawn_from((LOGITS.double() / temperature).softmax(-1), frequencies(temperature=temperature))


def test_top_k_keeps_the_k_likeliest():
    probs = LOGITS.double().softmax(-1)
    for k in (2, 3, V - 1):
        kept = torch.zeros(V, dtype=torch.float64)
        ids = probs.topk(k).indices
        kept[ids] = probs[ids]
        assert_drawn_from(kept / kept.sum(), frequencies(temperature=1.0, top_k=k))


def test_top_k_of_one_is_greedy():
    assert set(frequencies(n=100, temperature=5.0, top_k=1)) == {int(LOGITS.argmax())}


def test_top_k_beyond_the_vocabulary_keeps_all():
    assert frequencies(temperature=1.5, top_k=10**9) == frequencies(temperature=1.5)


def test_top_k_breaks_ties_by_id():
    assert set(frequencies(logits=torch.zeros(V), temperature=1.0, top_k=4)) == {0, 1, 2, 3}


def test_top_p_keeps_the_smallest_set_that_reaches_it():
    logits = torch.tensor([0.1, 0.4, 0.2, 0.3] + [0.0] * (V - 4)).log()
    for top_p, kept in ((0.05, {1}), (0.39, {1}), (0.45, {1, 3}), (0.75, {1, 2, 3}), (0.95, {0, 1, 2, 3})):
        assert set(frequencies(logits=logits, temperature=1.0, top_p=top_p)) == kept
    assert set(frequencies(logits=logits, temperature=1.0, top_p=1e-12)) == {1}


def test_top_p_counts_what_top_k_left():
    logits = torch.tensor([0.4, 0.3, 0.3] + [0.0] * (V - 3)).log()
    # Of all: 0.4 < 0.5, so two are kept. Of the top two, renormalised: 0.571 already reaches 0.5.
    assert set(frequencies(logits=logits, temperature=1.0, top_p=0.5)) == {0, 1}
    assert set(frequencies(logits=logits, temperature=1.0, top_p=0.5, top_k=2)) == {0}


def test_min_p_is_a_share_of_the_likeliest():
    logits = torch.tensor([0.5, 0.26, 0.24] + [0.0] * (V - 3)).log()
    assert set(frequencies(logits=logits, temperature=1.0, min_p=0.5)) == {0, 1}
    assert set(frequencies(logits=torch.zeros(V), temperature=1.0, min_p=1.0)) == set(range(V))


def test_presence_and_frequency_count_the_output_only():
    assert pick([3.0, 2.0, 0.0], prompt=(0, 0), presence_penalty=2.0, frequency_penalty=2.0) == 0
    assert pick([3.0, 2.0, 0.0], output=[0], presence_penalty=2.0) == 1
    assert pick([3.0, 2.0, 0.0], output=[0] * 3, frequency_penalty=0.3) == 0
    assert pick([3.0, 2.0, 0.0], output=[0] * 4, frequency_penalty=0.3) == 1
    assert pick([3.0, 2.0, 2.5], output=[1, 1, 1], frequency_penalty=-0.5) == 1  # negative: encouraged


def test_repetition_penalty_counts_the_prompt_too_and_never_encourages():
    assert pick([3.0, 2.0, 0.0], prompt=(0,), repetition_penalty=2.0) == 1
    assert pick([3.0, 2.0, 0.0], output=[0], prompt=(2,), repetition_penalty=2.0) == 1
    assert pick([-1.0, -1.5, -9.0], prompt=(0,), repetition_penalty=2.0) == 1  # a negative logit falls too


def test_bias_forbids_and_forces():
    assert pick([3.0, 2.0, 0.0], logit_bias={0: -100.0}) == 1
    assert pick([3.0, 2.0, 0.0], logit_bias={2: 100.0}) == 2


def test_end_tokens_wait_for_min_tokens():
    options = {"eos": 0, "min_tokens": 2, "stop_token_ids": (1,)}
    assert pick([9.0, 8.0, 1.0], output=[5], **options) == 2
    assert pick([9.0, 8.0, 1.0], output=[5, 5], **options) == 0
    assert pick([9.0, 8.0, 1.0], output=[5], **options, logit_bias={0: 100.0}) == 2  # no unlocking
    assert pick([9.0, 8.0, 1.0], output=[5], **options, ignore_eos=True) == 0  # a token like others
    assert set(frequencies(temperature=50.0, eos=3, min_tokens=1)) == set(range(V)) - {3}


def test_logprobs_are_the_models_own_whatever_the_options():
    expected = LOGITS.double().log_softmax(-1)
    options = {"temperature": 0.7, "top_k": 2, "logit_bias": {0: 50.0}, "presence_penalty": 1.0}
    token = sample(LOGITS, state([3, 4], logprobs=3, **options))
    assert token.token_id == 0
    assert token.logprob == pytest.approx(float(expected[0]), abs=1e-9)
    assert [token_id for token_id, _ in token.top] == expected.topk(3).indices.tolist()
    assert [value for _, value in token.top] == pytest.approx(expected.topk(3).values.tolist(), abs=1e-9)


def test_zero_logprobs_is_the_chosen_one_alone_and_none_is_none():
    assert sample(LOGITS, state(logprobs=0)).top == ()
    assert sample(LOGITS, state(logprobs=0)).logprob is not None
    assert sample(LOGITS, state()).logprob is None
    assert len(sample(LOGITS, state(logprobs=20)).top) == V  # as many as there are
    assert [i for i, _ in sample(torch.zeros(V), state(logprobs=3)).top] == [0, 1, 2]


options = st.fixed_dictionaries(
    {},
    optional={
        "temperature": st.sampled_from([0.0, 5e-324, 1e-40, 1e-4, 0.5, 1.0, 1e300]),
        "top_k": st.sampled_from([0, 1, 5, 10**12, 10**400]),
        "top_p": st.sampled_from([1e-300, 0.1, 0.9, 1.0]),
        "min_p": st.sampled_from([0.0, 1e-300, 0.1, 1.0]),
        "presence_penalty": st.sampled_from([-2.0, 2.0]),
        "frequency_penalty": st.sampled_from([-2.0, 2.0]),
        "repetition_penalty": st.sampled_from([1e-3, 0.1, 1.3, 1e3]),
        "logit_bias": st.dictionaries(
            st.integers(0, V - 1), st.sampled_from([-100.0, 0.5, 100.0]), max_size=V
        ),
        "logprobs": st.integers(0, 20),
        "min_tokens": st.integers(0, 5),
        "stop_token_ids": st.sampled_from([(), (2, 5)]),
        "seed": st.integers(0, 2**64 - 1),
    },
)
histories = st.lists(st.integers(0, V - 1), max_size=8)
magnitudes = st.sampled_from([1e-3, 1.0, 1e4, 1e30, 1e37])


@given(st.lists(st.tuples(options, histories, magnitudes), min_size=1, max_size=6), st.integers(0, 99))
@settings(deadline=None, derandomize=True, max_examples=100)
def test_a_row_is_what_it_is_alone_and_nothing_overflows(rows: list[Any], seed: int):
    scale = torch.tensor([[magnitude] for _, _, magnitude in rows])
    logits = torch.randn(len(rows), V, generator=torch.Generator().manual_seed(seed)) * scale
    kept = logits.clone()
    states = [state(history, **given_options) for given_options, history, _ in rows]
    together = sample_batch(logits, states)
    assert together == [sample(row, one) for row, one in zip(logits, states, strict=True)]
    assert torch.equal(logits, kept), "the caller's logits were written to"
    for token, one in zip(together, states, strict=True):
        assert 0 <= token.token_id < V
        assert one.may_end or token.token_id not in one.end_ids
        assert token.logprob is None or token.logprob <= 0.0


def test_a_tiny_temperature_is_greedy():
    for temperature in (1e-4, 1e-40, 5e-324):
        assert set(frequencies(n=50, temperature=temperature)) == {int(LOGITS.argmax())}


def test_a_token_depends_on_its_seed_and_place_alone():
    seeds = [pick(LOGITS, temperature=2.0, seed=seed) for seed in range(50)]
    places = [pick(LOGITS, [0] * place, temperature=2.0) for place in range(50)]
    torch.manual_seed(123)
    assert seeds == [pick(LOGITS, temperature=2.0, seed=seed) for seed in range(50)]
    assert len(set(seeds)) > 3
    assert len(set(places)) > 3


@pytest.mark.parametrize("bad", [math.nan, math.inf])
@pytest.mark.parametrize("given_options", [{}, {"temperature": 1.0}, {"logprobs": 1}])
def test_a_broken_logit_is_an_error(bad: float, given_options: dict[str, Any]):
    logits = LOGITS.clone()
    logits[5] = bad
    with pytest.raises(FloatingPointError, match="request a"):
        sample(logits, state(**given_options))


def test_nothing_left_to_choose_is_an_error():
    with pytest.raises(FloatingPointError, match="leave a token"):
        pick([1.0, 2.0], stop_token_ids=(0, 1), min_tokens=1)


def test_half_precision_logits_are_sampled_exactly():
    assert sample(LOGITS.bfloat16(), state(temperature=1.0, top_p=0.9)).token_id in range(V)
    logits = torch.randn(1, V, dtype=torch.float64)
    kept = logits.clone()
    sample_batch(logits, [state(logit_bias={0: 5.0}, temperature=1.0)])
    assert torch.equal(logits, kept)


@given(st.lists(st.booleans(), min_size=2, max_size=8), st.integers(0, 99))
@settings(deadline=None, derandomize=True)
def test_plain_greedy_rows_choose_alike_whether_all_are_plain_or_not(plain: list[bool], seed: int):
    logits = torch.randn(len(plain), V, generator=torch.Generator().manual_seed(seed)).round()  # many ties
    mixed = [state(**({} if easy else {"temperature": 1.0, "logprobs": 1})) for easy in plain]
    alike = sample_batch(logits, [state() for _ in plain])
    for easy, one, other in zip(plain, sample_batch(logits, mixed), alike, strict=True):
        assert one == other or not easy
