from __future__ import annotations

from typing import Any

import pytest

from servelib.clock import VirtualClock
from servelib.engine.naive import NaiveEngine
from servelib.model.scripted import ScriptedModel
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
