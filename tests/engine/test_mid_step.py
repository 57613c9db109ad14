"""What happens while a step runs: an abort, a new arrival by a freed name, a failure; and extreme sizes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from histories import naive, play
from textmodel import TextModel

from servelib.clock import VirtualClock
from servelib.engine.batch import Batch
from servelib.engine.registry import make_engine
from servelib.engine.static import PAD
from servelib.errors import InvalidRequestError
from servelib.kv.pool import SlotPool
from servelib.request import Request, RequestState, SamplingParams


def ask(name: str, *ids: int, tokens: int = 3) -> Request:
    return Request(name, ids, SamplingParams(max_tokens=tokens, ignore_eos=True))


class Interrupted(TextModel):
    """Calls ``once`` in the middle of its first step, by the name of the part that was running."""

    def __init__(self, part: str, once: Callable[[], None]) -> None:
        super().__init__()
        self.part, self.once = part, [once]

    def _reached(self, part: str) -> None:
        if part == self.part and self.once:
            self.once.pop()()

    def run(self, batch: Batch, cache: Any) -> Any:
        self._reached("before")
        found = super().run(batch, cache)
        self._reached("run")
        return found

    def run_padded(self, rows: Any, cache: Any) -> Any:
        self._reached("before")
        found = super().run_padded(rows, cache)
        self._reached("run")
        return found

    def sample_batch(self, logits: Any, states: Any) -> Any:
        found = super().sample_batch(logits, states)
        self._reached("sample")
        return found


def interrupted(name: str, part: str, once: Callable[[Any], None]) -> dict[str, list[int]]:
    """The tokens of r0, r1 and r2, of whose first step ``part`` calls ``once`` with the engine."""
    engines: list[Any] = []
    engine = make_engine(name, Interrupted(part, lambda: once(engines[0])), VirtualClock())
    engines.append(engine)
    for i in range(3):
        engine.add_request(ask(f"r{i}", 1, 2, 3 + i))
    found: dict[str, list[int]] = {}
    while engine.has_work:
        for output in engine.step():
            assert output.error is None
            found.setdefault(output.request_id, []).extend(output.token_ids)
        if name == "continuous":
            engine.scheduler.check_integrity()
    return found


def alone(*requests: Request) -> dict[str, list[int]]:
    return {r.request_id: [t.token_id for t in naive(TextModel(), r)[0]] for r in requests}


PARTS = pytest.mark.parametrize("part", ["before", "run", "sample"])
BATCHING = pytest.mark.parametrize("name", ["static", "continuous"])
NEIGHBOURS = ask("r0", 1, 2, 3), ask("r2", 1, 2, 5)


@BATCHING
@PARTS
def test_an_abort_inside_a_step(name: str, part: str):
    assert interrupted(name, part, lambda engine: engine.abort("r1")) == alone(*NEIGHBOURS)


@BATCHING
@PARTS
def test_an_id_that_is_freed_and_taken_again_inside_a_step_is_the_new_request(name: str, part: str):
    again = ask("r1", 9, 9, tokens=2)

    def once(engine: Any) -> None:
        engine.abort("r1")
        engine.add_request(again)

    assert interrupted(name, part, once) == alone(*NEIGHBOURS, again)


@BATCHING
def test_an_abort_in_a_step_that_then_fails(name: str):
    def once(engine: Any) -> None:
        engine.abort("r1")
        raise RuntimeError("the step, not a row")

    assert interrupted(name, "before", once) == alone(*NEIGHBOURS)


@pytest.mark.parametrize(("prompt", "tokens"), [(1, 1), (1, 47), (47, 1), (24, 24)])
def test_one_slot_and_one_token_a_step(prompt: int, tokens: int):
    """The smallest engine serves what fills the context exactly, a token of the prompt at a time."""
    model = TextModel()
    engine = make_engine("continuous", model, VirtualClock(), max_num_seqs=1, max_num_batched_tokens=1)
    asked = (
        "add",
        tuple(i % 40 for i in range(prompt)),
        SamplingParams(max_tokens=tokens, ignore_eos=True),
        2,
    )
    seen = play(engine, [asked])
    for name, request in seen.requests.items():
        assert seen.tokens[name] == naive(TextModel(), request)[0]
    assert {batch.tokens for batch in model.batches} == {1}


@pytest.mark.parametrize(("name", "option"), [("static", "batch_size"), ("continuous", "max_num_seqs")])
def test_a_batch_of_256(name: str, option: str):
    asked = [
        ("add", (i % 40, 7 * i % 40, 3), SamplingParams(max_tokens=1 + i % 3, ignore_eos=True), 1)
        for i in range(256)
    ]
    model = TextModel()
    seen = play(make_engine(name, model, VirtualClock(), **{option: 256}), asked)
    for request_id, request in seen.requests.items():
        assert seen.tokens[request_id] == naive(TextModel(), request)[0]
    assert (len(model.batches) or len(model.padded)) == 3


@BATCHING
def test_an_idle_engine_does_not_run_the_model(name: str):
    ran: list[bool] = []
    model = Interrupted("before", lambda: ran.append(True))
    engine = make_engine(name, model, VirtualClock())
    assert engine.step() == []
    engine.add_request(ask("r0", 1))
    engine.abort("r0")
    assert engine.step() == []
    assert not ran


def test_a_row_that_is_over_is_fed_pads():
    fed: list[list[int]] = []

    class Watched(TextModel):
        def run_padded(self, rows: Any, cache: Any) -> Any:
            fed.append([row[-1] for row in rows])
            return super().run_padded(rows, cache)

    engine = make_engine("static", Watched(), VirtualClock())
    for asked in (ask("short", 5, tokens=1), ask("long", 6, tokens=3)):
        engine.add_request(asked)
    while engine.has_work:
        engine.step()
    assert [first for first, _ in fed] == [5, PAD, PAD]


def test_a_slot_is_full_at_its_size_and_not_before():
    pool, state = SlotPool(1, 8), RequestState(ask("r0", 1))
    pool.check(8)
    assert pool.admit(state) == 0
    assert pool.admit(RequestState(ask("r1", 1))) is None
    assert (pool.grow(state, 8), pool.grow(state, 9)) == (True, False)
    with pytest.raises(InvalidRequestError, match="at most 8: a slot"):
        pool.check(9)
    with pytest.raises(InvalidRequestError, match="slots"):
        SlotPool(0, 8)


def test_the_lowest_free_slot_is_given_first():
    pool = SlotPool(4, 8)
    states = [RequestState(ask(f"r{i}", 1)) for i in range(6)]
    for state in states[:4]:
        pool.admit(state)
    assert [pool.place(state) for state in states[:4]] == [0, 1, 2, 3]
    for i in (3, 0, 2):
        pool.release(states[i])
    for state in states[4:]:
        pool.admit(state)
    assert [pool.place(state) for state in states[4:]] == [0, 2]
