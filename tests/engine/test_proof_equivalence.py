"""Any engine gives each surviving request the naive engine's tokens: whatever else runs, leaves or waits."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import pytest
from histories import ANY_MODEL, TEXT_ONLY, Seen, histories, naive, play
from hypothesis import given, settings
from textmodel import SMALL, TextModel

from servelib.errors import InvalidRequestError
from servelib.model.config import ModelConfig
from servelib.model.tinygpt import TinyGPT
from servelib.request import Request, RequestState, SampledToken, SamplingParams

MODEL = TextModel()


def check(model: Any, seen: Seen) -> None:
    for name, request in seen.requests.items():
        tokens, reason = naive(model, request)
        if name in seen.aborted:
            assert seen.tokens[name] == tokens[: len(seen.tokens[name])]
        else:
            assert (seen.tokens[name], seen.reasons[name]) == (tokens, reason)


@pytest.mark.parametrize("name", [*ANY_MODEL, *TEXT_ONLY])
def test_any_engine_gives_the_naive_engines_tokens(name: str):
    make = {**ANY_MODEL, **TEXT_ONLY}[name]

    @settings(deadline=None, derandomize=True, max_examples=60)
    @given(histories(SMALL.vocab_size))
    def any_history(history: list[Any]) -> None:
        check(MODEL, play(make(MODEL), history))

    any_history()


TINY = ModelConfig(label="tiny", vocab_size=40, width=32, layers=2, heads=4, kv_heads=2, head_size=8,
                   ffn_size=48, context=64, eos_id=7)  # fmt: skip
GPT = TinyGPT(TINY)
EPSILON = 1e-4
"""Logits here are about 1 in size; two ways to compute them in float32 differ by about 1e-6."""

MOST_TIES = 1
"""Of one engine's proof: the rounding of another processor may break one."""


@dataclass
class Compared:
    """How many tokens were compared, and how many differed because two were as good as equally likely."""

    tokens: int = 0
    ties: int = 0

    def check(self, seen: Seen) -> None:
        for name, request in seen.requests.items():
            wanted, reason = naive(GPT, request)
            found = seen.tokens[name]
            self.tokens += len(found)
            for i, (one, other) in enumerate(zip(found, wanted, strict=False)):
                if one.token_id != other.token_id:
                    assert is_tie(request, wanted[:i], other.token_id, one.token_id), (name, i)
                    self.ties += 1
                    break  # what follows is of another text
                assert (one.logprob is None) == (other.logprob is None)
                if one.logprob is not None:
                    assert one.logprob == pytest.approx(other.logprob, abs=EPSILON)
                    assert [p for _, p in one.top] == pytest.approx([p for _, p in other.top], abs=EPSILON)
            else:
                if name in seen.aborted:
                    assert len(found) <= len(wanted)
                else:
                    assert (len(found), seen.reasons[name]) == (len(wanted), reason)

    def check_ties(self) -> None:
        """Seen: none in the 4,373 tokens of all engines. A step that is less exact breaks more of them."""
        assert self.ties <= MOST_TIES, f"{self.ties} near-ties in {self.tokens} tokens, at most {MOST_TIES}"


def is_tie(request: Request, before: list[SampledToken], wanted: int, found: int) -> bool:
    """Whether moving two logits by ``EPSILON`` turns the naive engine's choice into the one found."""
    state = RequestState(request, TINY.eos_id)
    state.output_ids = [token.token_id for token in before]
    logits = GPT.next_logits(state.all_ids).clone()
    logits[wanted] -= EPSILON
    logits[found] += EPSILON
    return GPT.sample(logits, state).token_id == found


@pytest.mark.parametrize("name", ANY_MODEL)
def test_the_real_model_too(name: str):
    compared = Compared()

    @settings(deadline=None, derandomize=True, max_examples=40)
    @given(histories(TINY.vocab_size, longest=20, operations=12))
    def any_history(history: list[Any]) -> None:
        compared.check(play(ANY_MODEL[name](GPT), history))

    any_history()
    assert compared.tokens > 300
    compared.check_ties()


BATCHED = [name for name in ANY_MODEL if name not in ("naive", "cached")]


@pytest.mark.parametrize("name", ["static, 64", "continuous"])
@pytest.mark.parametrize("batch", [1, 2, 3, 7, 16, 33, 64])
def test_batches_of_every_size(name: str, batch: int):
    compared = Compared()
    asked = [
        (
            "add",
            tuple((7 * i + k) % TINY.vocab_size for k in range(1 + i % 9)),
            SamplingParams(max_tokens=4),
            1,
        )
        for i in range(batch)
    ]
    seen = play(ANY_MODEL[name](GPT), asked)
    compared.check(seen)
    assert len(seen.requests) == batch
    compared.check_ties()


@pytest.mark.parametrize("name", BATCHED)
@pytest.mark.parametrize(("prompt", "tokens"), [(1, 1), (1, 63), (63, 1), (62, 2), (32, 32), (31, 32)])
def test_the_shortest_and_the_longest_that_fit_the_context(name: str, prompt: int, tokens: int):
    ids = tuple((3 * k) % TINY.vocab_size for k in range(prompt))
    sampling = SamplingParams(max_tokens=tokens, ignore_eos=True, logprobs=1)
    compared = Compared()
    other = ("add", ids[::-1][:5], SamplingParams(max_tokens=3), 1)
    compared.check(play(ANY_MODEL[name](GPT), [("add", ids, sampling, 1), other]))
    compared.check_ties()


@pytest.mark.parametrize("name", ANY_MODEL)
def test_one_token_more_than_the_context_is_refused(name: str):
    engine = ANY_MODEL[name](GPT)
    with pytest.raises(InvalidRequestError, match="context is 64"):
        engine.add_request(Request("a", (1,) * 60, SamplingParams(max_tokens=5)))
    assert not engine.has_work


@pytest.mark.parametrize("name", BATCHED)
def test_n_samples_of_one_prompt_differ_and_each_is_its_own(name: str):
    sampling = SamplingParams(max_tokens=6, temperature=1.0, ignore_eos=True)
    seen = play(ANY_MODEL[name](GPT), [("add", (1, 2, 3), sampling, 8)])
    compared = Compared()
    compared.check(seen)
    compared.check_ties()
    assert len({tuple(t.token_id for t in tokens) for tokens in seen.tokens.values()}) > 1


def test_a_tie_is_told_from_a_mistake():
    request = Request("a", (1, 2, 3), SamplingParams(max_tokens=1))
    (wanted,), _ = naive(GPT, request)
    order = GPT.next_logits((1, 2, 3)).argsort(descending=True).tolist()
    assert order[0] == wanted.token_id
    assert is_tie(request, [], wanted.token_id, wanted.token_id)
    assert not is_tie(request, [], wanted.token_id, order[1])
