from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from servelib.clock import VirtualClock
from servelib.engine.naive import NaiveEngine
from servelib.errors import InvalidRequestError
from servelib.model.config import ModelConfig
from servelib.model.scripted import ScriptedModel
from servelib.model.tinygpt import TinyGPT
from servelib.request import FinishReason, Request, RequestState, SamplingParams, StepOutput
from servelib.spans import Span, SpanLog, Stage

EOS = 257
both = pytest.mark.parametrize("use_cache", [False, True], ids=["no cache", "cache"])


def ask(name: str, prompt: int = 3, **options: Any) -> Request:
    return Request(name, tuple(range(40, 40 + prompt)), SamplingParams(**({"max_tokens": 3} | options)))


def engine_of(*requests: Request, script: Any = (1, 2, 3, 4), use_cache: bool = False, **parts: Any):
    engine = NaiveEngine(ScriptedModel(script), use_cache=use_cache, **parts)
    for request in requests:
        engine.add_request(request)
    return engine


def drain(engine: NaiveEngine) -> list[StepOutput]:
    outputs = []
    while engine.has_work:
        outputs += engine.step()
    return outputs


def summary(outputs: list[StepOutput]) -> list[tuple[str, tuple[int, ...], FinishReason | None]]:
    return [(output.request_id, output.token_ids, output.finish_reason) for output in outputs]


@both
def test_strict_arrival_order_one_token_a_step(use_cache: bool):
    engine = engine_of(ask("long"), ask("short", max_tokens=1), use_cache=use_cache)
    assert summary(drain(engine)) == [
        ("long", (1,), None),
        ("long", (2,), None),
        ("long", (3,), FinishReason.LENGTH),
        ("short", (1,), FinishReason.LENGTH),
    ]


def test_nothing_to_do_returns_nothing():
    engine = engine_of()
    assert not engine.has_work
    assert engine.step() == []
    engine.add_request(ask("a"))
    assert engine.has_work
    drain(engine)
    assert engine.step() == []


def test_adding_never_runs_the_model():
    engine = engine_of(ask("a"), ask("b"))
    assert engine.model.calls == []


def test_what_the_model_is_given_with_and_without_a_cache():
    without, cached = engine_of(ask("a")), engine_of(ask("a"), use_cache=True)
    drain(without), drain(cached)
    assert without.model.calls == [(3, 0), (4, 0), (5, 0)]
    assert cached.model.calls == [(3, 0), (1, 3), (1, 4)]
    assert (without.name, cached.name) == ("naive", "cached")


def test_each_request_gets_a_fresh_cache():
    engine = engine_of(ask("a"), ask("b"), use_cache=True)
    drain(engine)
    assert engine.model.calls == [(3, 0), (1, 3), (1, 4)] * 2


@both
def test_abort_waiting_running_unknown_twice_and_finished(use_cache: bool):
    engine = engine_of(ask("a"), ask("b"), ask("c"), use_cache=use_cache)
    engine.abort("nobody")
    engine.abort("b")  # waiting
    engine.abort("b")
    assert summary(engine.step()) == [("a", (1,), None)]
    engine.abort("a")  # running
    engine.abort("a")
    rest = drain(engine)
    assert {output.request_id for output in rest} == {"c"}
    assert [output.token_ids for output in rest] == [(1,), (2,), (3,)]
    engine.abort("c")  # finished
    assert not engine.has_work


def test_an_id_is_free_again_once_its_request_is_over():
    engine = engine_of(ask("a"))
    with pytest.raises(InvalidRequestError, match="live request") as caught:
        engine.add_request(ask("a"))
    assert caught.value.field == "request_id"
    assert len(drain(engine)) == 3, "the refused one left no trace"
    engine.add_request(ask("a"))
    engine.abort("a")
    engine.add_request(ask("a"))
    assert len(drain(engine)) == 3


@pytest.mark.parametrize(
    ("request_", "field"),
    [
        (ask("a", prompt=2048), "prompt"),
        (ask("a", prompt=2000, max_tokens=49), "max_tokens"),
        (ask("a", max_tokens=2046), "max_tokens"),
        (Request("a", (260,)), "prompt"),
    ],
)
def test_what_can_never_be_served_is_refused_at_once(request_: Request, field: str):
    engine = engine_of()
    with pytest.raises(InvalidRequestError) as caught:
        engine.add_request(request_)
    assert caught.value.field == field
    assert not engine.has_work


class Failing(ScriptedModel):
    """Raises at one chosen place for the request named "bad", whose prompt is 5 long."""

    def __init__(self, where: str) -> None:
        super().__init__(self._choose)
        self.where, self.caches = where, 0

    def _choose(self, state: RequestState) -> int:
        if self.where == "sample" and state.request.request_id == "bad" and len(state.output_ids) == 1:
            raise FloatingPointError("no likeliest token")
        return 7

    def new_cache(self) -> list[int]:
        self.caches += 1
        if self.where == "new_cache" and self.caches == 2:
            raise MemoryError("no room for a cache")
        return []

    def next_logits(self, ids: Any, cache: Any = None) -> None:
        if self.where == "next_logits" and len(ids) == 5:
            raise RuntimeError("the kernel failed")
        super().next_logits(ids, cache)


@pytest.mark.parametrize(
    ("where", "tokens", "error"),
    [
        ("next_logits", 0, "RuntimeError: the kernel failed"),
        ("sample", 1, "FloatingPointError: no likeliest token"),
        ("new_cache", 0, "MemoryError: no room for a cache"),
    ],
)
def test_a_failure_ends_its_own_request_only(where: str, tokens: int, error: str):
    engine = NaiveEngine(Failing(where), use_cache=True)
    for request in (ask("before"), ask("bad", prompt=5), ask("after")):
        engine.add_request(request)
    outputs = drain(engine)
    bad = [output for output in outputs if output.request_id == "bad"]
    assert len(bad) == tokens + 1
    assert (bad[-1].tokens, bad[-1].finish_reason, bad[-1].error) == ((), FinishReason.ERROR, error)
    for name in ("before", "after"):
        assert [o.token_ids for o in outputs if o.request_id == name] == [(7,), (7,), (7,)]
    engine.add_request(ask("bad"))  # its id is free, and the engine lives


@pytest.mark.parametrize(
    ("options", "tokens", "reason"),
    [
        ({}, [1, EOS], FinishReason.STOP),
        ({"ignore_eos": True}, [1, EOS, 3, EOS, 5], FinishReason.LENGTH),
        ({"min_tokens": 2}, [1, EOS, 3, EOS], FinishReason.STOP),
        ({"stop_token_ids": (1,)}, [1], FinishReason.STOP),
        ({"stop_token_ids": (3,), "ignore_eos": True}, [1, EOS, 3], FinishReason.STOP),
        ({"max_tokens": 2}, [1, EOS], FinishReason.STOP),
        ({"max_tokens": 1}, [1], FinishReason.LENGTH),
    ],
)
def test_where_a_request_stops(options: dict[str, Any], tokens: list[int], reason: FinishReason):
    engine = engine_of(ask("a", **({"max_tokens": 5} | options)), script=[1, EOS, 3, EOS, 5])
    outputs = drain(engine)
    assert [token for output in outputs for token in output.token_ids] == tokens
    assert [output.finish_reason for output in outputs] == [None] * (len(tokens) - 1) + [reason]


class Costed(ScriptedModel):
    """Charges a second a new token to the clock."""

    def __init__(self, clock: VirtualClock) -> None:
        super().__init__([7])
        self.clock = clock

    def next_logits(self, ids: Any, cache: Any = None) -> None:
        self.clock.advance(float(len(ids)))
        super().next_logits(ids, cache)


@pytest.mark.parametrize(("use_cache", "second"), [(False, (4.0, 0)), (True, (1.0, 3))])
def test_spans_are_exact_and_in_order(use_cache: bool, second: tuple[float, int]):
    clock, log = VirtualClock(), SpanLog()
    engine = NaiveEngine(Costed(clock), use_cache=use_cache, clock=clock, spans=log)
    engine.add_request(ask("a", max_tokens=2))
    engine.add_request(ask("b", prompt=2, max_tokens=1))
    clock.advance(1.0)
    drain(engine)
    took, cached = second
    end = 4.0 + took
    assert log.spans("a") == [
        Span("a", Stage.QUEUE, 0.0, 1.0),
        Span("a", Stage.PREFILL, 1.0, 4.0, 3, 0),
        Span("a", Stage.SAMPLE, 4.0, 4.0),
        Span("a", Stage.DECODE, 4.0, end, 4 - cached, cached),
        Span("a", Stage.SAMPLE, end, end),
    ]
    assert log.spans("b") == [
        Span("b", Stage.QUEUE, 0.0, end),
        Span("b", Stage.PREFILL, end, end + 2.0, 2, 0),
        Span("b", Stage.SAMPLE, end + 2.0, end + 2.0),
    ]


SMALL = ModelConfig(label="small", vocab_size=40, width=16, layers=2, heads=4, kv_heads=2, head_size=4,
                    ffn_size=16, context=48, eos_id=7)  # fmt: skip
MODELS: dict[str, Any] = {"tinygpt": TinyGPT(SMALL)}
MODELS["scripted"] = ScriptedModel(
    lambda state: (sum(state.all_ids) * 7 + len(state.output_ids)) % SMALL.vocab_size, SMALL
)

params = st.builds(
    lambda most, least, temperature, ends, seed: SamplingParams(
        max_tokens=most, min_tokens=min(least, most), temperature=temperature, stop_token_ids=ends, seed=seed
    ),
    st.integers(1, 6), st.integers(0, 6), st.sampled_from([0.0, 1.0]),
    st.sampled_from([(), (3, 4, 5)]), st.none() | st.integers(0, 99),
)  # fmt: skip
prompts = st.lists(st.integers(0, SMALL.vocab_size - 1), min_size=1, max_size=12).map(tuple)
operations = st.lists(
    st.tuples(st.just("add"), prompts, params)
    | st.tuples(st.just("step"), st.integers(1, 4), st.none())
    | st.tuples(st.just("abort"), st.integers(0, 12), st.none()),
    max_size=20,
)


def alone(model: Any, request: Request) -> tuple[list[int], FinishReason | None]:
    engine = NaiveEngine(model)
    engine.add_request(request)
    outputs = drain(engine)
    return [token for output in outputs for token in output.token_ids], outputs[-1].finish_reason


@pytest.mark.parametrize("name", ["tinygpt", "scripted"])
@both
def test_any_history_gives_each_request_what_it_gets_alone(name: str, use_cache: bool):
    check_histories(MODELS[name], use_cache)()


def check_histories(model: Any, use_cache: bool) -> Callable[[], None]:
    @settings(deadline=None, derandomize=True, max_examples=30)
    @given(operations)
    def check(history: list[tuple[str, Any, Any]]) -> None:
        engine = NaiveEngine(model, use_cache=use_cache)
        requests: dict[str, Request] = {}
        tokens: dict[str, list[int]] = {}
        reasons: dict[str, FinishReason] = {}
        aborted: set[str] = set()

        def take(outputs: list[StepOutput]) -> None:
            assert len(outputs) <= 1
            for output in outputs:
                assert output.request_id not in reasons, "a request ended twice, or went on after its end"
                assert output.request_id not in aborted
                assert output.error is None
                tokens[output.request_id] += output.token_ids
                if output.finish_reason:
                    reasons[output.request_id] = output.finish_reason

        for kind, what, sampling in history:
            if kind == "add":
                name = f"r{len(requests)}"
                requests[name] = Request(name, what, sampling)
                tokens[name] = []
                engine.add_request(requests[name])
            elif kind == "abort":
                name = f"r{what}"
                if name in requests and name not in reasons:
                    aborted.add(name)
                engine.abort(name)
            else:
                for _ in range(what):
                    take(engine.step())
        while engine.has_work:
            take(engine.step())
        assert set(reasons) | aborted == set(requests)
        for name, request in requests.items():
            whole, reason = alone(model, request)
            if name in aborted:
                assert tokens[name] == whole[: len(tokens[name])]
            else:
                assert (tokens[name], reasons[name]) == (whole, reason)

    return check
