"""Any engine under any history of arrivals, steps and aborts; and what each request gets alone."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from hypothesis import strategies as st
from textmodel import SMALL, BlockPool, Blocks, PrefixPool

from servelib.clock import VirtualClock
from servelib.engine.batch import Batch
from servelib.engine.continuous import ContinuousEngine
from servelib.engine.naive import NaiveEngine
from servelib.engine.registry import make_engine
from servelib.engine.scheduler import Limits, Scheduler
from servelib.kv.pool import SlotPool
from servelib.request import FinishReason, Request, RequestState, SampledToken, SamplingParams, StepOutput

Alone = tuple[list[SampledToken], FinishReason]


def naive(model: Any, request: Request) -> Alone:
    """What ``request`` gets from the naive engine, with nobody beside it."""
    engine = NaiveEngine(model)
    engine.add_request(request)
    outputs = drain(engine)
    reason = outputs[-1].finish_reason
    assert reason is not None
    return [token for output in outputs for token in output.tokens], reason


def drain(engine: Any) -> list[StepOutput]:
    outputs = []
    for _ in range(10_000):
        if not engine.has_work:
            return outputs
        outputs += engine.step()
    raise AssertionError("it does not come to an end")


def by_chunks(size: int) -> Callable[[int, int, int], int]:
    return lambda remaining, left, most: min(remaining, left, size)


class Guesser:
    """Guesses right and wrong: the tokens that the naive engine gives, every third one changed."""

    def __init__(self, model: Any) -> None:
        self.model = model
        self.known: dict[str, list[int]] = {}
        self.right = self.wrong = 0

    def guess(self, state: RequestState) -> Sequence[int]:
        request = state.request
        if request.request_id not in self.known:
            self.known[request.request_id] = [token.token_id for token in naive(self.model, request)[0]]
        done = len(state.output_ids)
        ahead = self.known[request.request_id][done : done + 3]
        return [(t + 1) % SMALL.vocab_size if (done + i) % 3 == 2 else t for i, t in enumerate(ahead)]

    def sample(self, logits: Any, batch: Batch) -> list[list[SampledToken]]:
        """Take guessed tokens as long as each is what would have been chosen."""
        found, at = [], 0
        for row in batch.rows:
            taken: list[SampledToken] = []
            state = RequestState(row.state.request, row.state.eos_id)
            state.output_ids = list(row.state.output_ids)
            guesses = list(row.ids[len(row.ids) - row.samples + 1 :]) if row.samples else []
            for i in range(row.samples):
                (token,) = self.model.sample_batch(logits[at + i : at + i + 1], [state])
                taken.append(token)
                state.output_ids.append(token.token_id)
                if i < len(guesses) and guesses[i] != token.token_id:
                    self.wrong += 1
                    break
                self.right += i < len(guesses)
            at += row.samples
            found.append(taken)
        return found


def _slotted(model: Any, slots: int, tokens: int, guesser: Guesser | None = None, **parts: Any) -> Any:
    if guesser is not None:
        parts["guess"] = guesser.guess
    size = model.config.context
    scheduler = Scheduler(SlotPool(slots, size), Limits(slots, tokens), **parts)
    sampler = None if guesser is None else guesser.sample
    return ContinuousEngine(
        model, model.new_slots(slots, size), scheduler, sampler=sampler, clock=VirtualClock()
    )


def _paged(model: Any, blocks: int, size: int, **parts: Any) -> Any:
    scheduler = Scheduler(BlockPool(blocks, size), Limits(8, 48), **parts)
    return ContinuousEngine(model, Blocks(blocks, size), scheduler, clock=VirtualClock())


def _prefix(model: Any) -> Any:
    scheduler = Scheduler(PrefixPool(3, model.config.context), Limits(3, 48))
    cache = model.new_slots(3, model.config.context)
    return ContinuousEngine(model, cache, scheduler, clock=VirtualClock())


ANY_MODEL: dict[str, Callable[[Any], Any]] = {
    "naive": lambda model: make_engine("naive", model, VirtualClock()),
    "cached": lambda model: make_engine("cached", model, VirtualClock()),
    "static": lambda model: make_engine("static", model, VirtualClock(), batch_size=3),
    "static, 64": lambda model: make_engine("static", model, VirtualClock(), batch_size=64),
    "continuous": lambda model: make_engine("continuous", model, VirtualClock()),
    "continuous, 2 slots": lambda model: _slotted(model, 2, 48),
    "continuous, few tokens a step": lambda model: _slotted(model, 4, 5),
    "continuous, chunks of 3": lambda model: _slotted(model, 4, 12, share=by_chunks(3)),
    "continuous, guessing": lambda model: _slotted(model, 4, 12, Guesser(model)),
    "continuous, guessing, chunks": lambda model: _slotted(model, 3, 6, Guesser(model), share=by_chunks(2)),
}
"""Engines that run on any model, tensors too."""

TEXT_ONLY: dict[str, Callable[[Any], Any]] = {
    "paged, tiny": lambda model: _paged(model, 12, 4),
    "paged, tiny, chunks": lambda model: _paged(model, 24, 2, share=by_chunks(3)),
    "paged, huge": lambda model: _paged(model, 500, 4),
    "prefix reuse": _prefix,
}
"""Engines whose cache only the model of text knows."""


def random_params(vocab: int) -> st.SearchStrategy[SamplingParams]:
    """Every option of sampling, plain ones most often."""

    def build(most: int, least: int, options: dict[str, Any]) -> SamplingParams:
        return SamplingParams(max_tokens=most, min_tokens=min(least, most), **options)

    ids = st.integers(0, vocab - 1)
    options = st.fixed_dictionaries(
        {},
        optional={
            "temperature": st.sampled_from([0.0, 0.7, 1.5]),
            "top_k": st.integers(0, 5),
            "top_p": st.sampled_from([0.5, 0.9, 1.0]),
            "min_p": st.sampled_from([0.0, 0.1]),
            "presence_penalty": st.sampled_from([-0.5, 0.5]),
            "frequency_penalty": st.sampled_from([-0.5, 0.5]),
            "repetition_penalty": st.sampled_from([0.8, 1.3]),
            "logit_bias": st.dictionaries(ids, st.sampled_from([-100.0, 1.0]), max_size=2),
            "logprobs": st.integers(0, 3),
            "stop_token_ids": st.lists(ids, max_size=3).map(tuple),
            "ignore_eos": st.booleans(),
            "seed": st.integers(0, 99),
        },
    )
    return st.builds(build, st.integers(1, 8), st.integers(0, 8), options)


def histories(vocab: int, longest: int = 12, operations: int = 20) -> st.SearchStrategy[list[Any]]:
    """Arrivals, steps and aborts. Now and then one prompt comes n times at once, each with its own seed."""
    prompts = st.lists(st.integers(0, vocab - 1), min_size=1, max_size=longest).map(tuple)
    arrival = st.tuples(st.just("add"), prompts, random_params(vocab), st.sampled_from([1, 1, 1, 3]))
    step = st.tuples(st.just("step"), st.integers(1, 4))
    abort = st.tuples(st.just("abort"), st.integers(0, 12))
    return st.lists(arrival | step | abort, max_size=operations)


@dataclass
class Seen:
    """What came of a history."""

    requests: dict[str, Request] = field(default_factory=dict)
    tokens: dict[str, list[SampledToken]] = field(default_factory=dict)
    reasons: dict[str, FinishReason] = field(default_factory=dict)
    aborted: set[str] = field(default_factory=set)
    errors: dict[str, str] = field(default_factory=dict)

    def take(self, outputs: list[StepOutput]) -> None:
        assert len({output.request_id for output in outputs}) == len(outputs), "two outputs for one request"
        for output in outputs:
            name = output.request_id
            assert name not in self.reasons, "a request ended twice, or went on after its end"
            assert name not in self.aborted, "an aborted request went on"
            assert output.tokens or output.finish_reason, "an output with nothing in it"
            self.tokens[name] += output.tokens
            if output.finish_reason:
                self.reasons[name] = output.finish_reason
            if output.error:
                self.errors[name] = output.error


def play(engine: Any, history: list[Any]) -> Seen:
    """Run ``history``, then all that is left; after each step the scheduler is checked, if there is one."""
    seen = Seen()

    def step() -> None:
        seen.take(engine.step())
        if isinstance(engine, ContinuousEngine):
            engine.scheduler.check_integrity()

    for kind, *what in history:
        if kind == "add":
            prompt, sampling, copies = what
            for _ in range(copies):
                request = Request(f"r{len(seen.requests)}", prompt, sampling)
                engine.add_request(request)
                seen.requests[request.request_id] = request
                seen.tokens[request.request_id] = []
        elif kind == "abort":
            name = f"r{what[0]}"
            if name in seen.requests and name not in seen.reasons:
                seen.aborted.add(name)
            engine.abort(name)
        else:
            for _ in range(what[0]):
                step()
    for _ in range(10_000):
        if not engine.has_work:
            break
        step()
    assert not engine.has_work, "it does not come to an end"
    assert set(seen.reasons) | seen.aborted == set(seen.requests), "a request was forgotten"
    if isinstance(engine, ContinuousEngine):
        engine.scheduler.pool.check_integrity(set())  # nothing is left behind
        assert not engine._queued
    return seen
