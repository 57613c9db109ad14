"""What a caller may rely on, in every engine of the registry."""

from __future__ import annotations

from typing import Any

import pytest
from histories import drain

from servelib.clock import VirtualClock
from servelib.engine.registry import ENGINES, OPTIONS, make_engine
from servelib.errors import InvalidRequestError
from servelib.model.scripted import ScriptedModel
from servelib.request import FinishReason, Request, SamplingParams
from servelib.spans import SpanLog, Stage

EOS = 257
every = pytest.mark.parametrize("name", ENGINES)


def ask(name: str, prompt: int = 3, **options: Any) -> Request:
    return Request(name, tuple(range(40, 40 + prompt)), SamplingParams(**({"max_tokens": 3} | options)))


def engine_of(engine: str, *requests: Request, script: Any = (1, 2, 3, 4), **parts: Any) -> Any:
    made = make_engine(engine, ScriptedModel(script), VirtualClock(), **parts)
    for request in requests:
        made.add_request(request)
    return made


@every
def test_it_goes_by_its_name(name: str):
    assert engine_of(name).name == name


@every
def test_nothing_to_do_returns_nothing(name: str):
    engine = engine_of(name)
    assert not engine.has_work
    assert engine.step() == []
    engine.add_request(ask("a"))
    assert engine.has_work
    drain(engine)
    assert not engine.has_work
    assert engine.step() == []


@every
def test_adding_never_runs_the_model(name: str):
    engine = engine_of(name, ask("a"), ask("b"))
    assert (engine.model.calls, engine.model.steps) == ([], [])


@every
def test_one_token_a_step_of_each_that_runs_and_a_reason_on_the_last(name: str):
    outputs = drain(engine_of(name, ask("a"), ask("b", max_tokens=1)))
    for request_id, tokens in (("a", [1, 2, 3]), ("b", [1])):
        own = [output for output in outputs if output.request_id == request_id]
        assert [output.token_ids for output in own] == [(token,) for token in tokens]
        assert [output.finish_reason for output in own] == [None] * (len(own) - 1) + [FinishReason.LENGTH]


@every
def test_abort_waiting_running_unknown_twice_and_finished(name: str):
    engine = engine_of(name, ask("a"), ask("b"), ask("c"))
    engine.abort("nobody")
    engine.abort("b")  # waiting
    engine.abort("b")
    first = {output.request_id for output in engine.step()}
    assert "a" in first
    assert "b" not in first
    engine.abort("a")  # running
    engine.abort("a")
    rest = drain(engine)
    assert {output.request_id for output in rest} == {"c"}
    engine.abort("c")  # finished
    assert not engine.has_work


@every
def test_an_id_is_free_again_once_its_request_is_over(name: str):
    engine = engine_of(name, ask("a"))
    for _ in range(2):  # waiting, then running
        with pytest.raises(InvalidRequestError, match="live request") as caught:
            engine.add_request(ask("a"))
        assert caught.value.field == "request_id"
        engine.step()
    assert len(drain(engine)) == 1, "the refused ones left no trace"
    engine.add_request(ask("a"))
    engine.abort("a")
    engine.add_request(ask("a"))
    assert len(drain(engine)) == 3


@every
@pytest.mark.parametrize(
    ("request_", "field"),
    [
        (ask("a", prompt=2048), "prompt"),
        (ask("a", prompt=2000, max_tokens=49), "max_tokens"),
        (ask("a", max_tokens=2046), "max_tokens"),
        (Request("a", (260,)), "prompt"),
    ],
)
def test_what_can_never_be_served_is_refused_at_once(name: str, request_: Request, field: str):
    engine = engine_of(name)
    with pytest.raises(InvalidRequestError) as caught:
        engine.add_request(request_)
    assert caught.value.field == field
    assert not engine.has_work


@every
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
def test_where_a_request_stops(name: str, options: dict[str, Any], tokens: list[int], reason: FinishReason):
    engine = engine_of(name, ask("a", **({"max_tokens": 5} | options)), script=[1, EOS, 3, EOS, 5])
    outputs = drain(engine)
    assert [token for output in outputs for token in output.token_ids] == tokens
    assert [output.finish_reason for output in outputs] == [None] * (len(tokens) - 1) + [reason]


@every
def test_every_request_is_one_queue_one_prefill_and_a_decode_a_token(name: str):
    log = SpanLog()
    made = make_engine(name, ScriptedModel([1]), VirtualClock(), log)
    for request in (ask("a", 5, max_tokens=4), ask("b", 2, max_tokens=2)):
        made.add_request(request)
    drain(made)
    for request_id, prompt, tokens in (("a", 5, 4), ("b", 2, 2)):
        spans = log.spans(request_id)
        stages = [span.stage for span in spans if span.stage is not Stage.SAMPLE]
        assert stages == [Stage.QUEUE, Stage.PREFILL, *[Stage.DECODE] * (tokens - 1)]
        steps = [span for span in spans if span.stage.on_accelerator]
        ends = [span.new_tokens + span.cached_tokens for span in steps]
        assert ends == list(range(prompt, prompt + tokens))


@every
def test_options_of_another_engine_are_refused(name: str):
    for option in ("batch_size", "max_num_seqs", "max_num_batched_tokens", "warp"):
        if option in OPTIONS.get(name, ()):
            assert option in engine_of(name, **{option: 64}).name, "the conditions must say it"
        else:
            with pytest.raises(InvalidRequestError, match=f"not of {name}") as caught:
                engine_of(name, **{option: 64})
            assert caught.value.field == option


@pytest.mark.parametrize(
    ("name", "options", "said"),
    [
        ("static", {"batch_size": 0}, "batch size"),
        ("continuous", {"max_num_seqs": 0}, "max_num_seqs"),
        ("continuous", {"max_num_seqs": 10**9}, "from 1 to 65536"),
        ("continuous", {"slot_size": 0}, "slot size"),
        ("continuous", {"max_num_batched_tokens": 63}, "at least 64"),
    ],
)
def test_options_out_of_range_are_refused(name: str, options: dict[str, int], said: str):
    with pytest.raises(InvalidRequestError, match=said):
        engine_of(name, **options)
