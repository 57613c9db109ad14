"""The scheduler under thousands of random operations: no place lost, the line in order, one end each."""

from __future__ import annotations

import random
from collections.abc import Callable
from itertools import islice, pairwise
from typing import Any

import pytest
from histories import ANY_MODEL, Guesser, by_chunks, drain, naive
from textmodel import SMALL, BlockPool, Blocks, PrefixPool, TextModel

from servelib.clock import VirtualClock
from servelib.engine.batch import Batch
from servelib.engine.continuous import ContinuousEngine
from servelib.engine.scheduler import Limits, Scheduler
from servelib.errors import InvalidRequestError
from servelib.kv.pool import SlotPool
from servelib.request import Request, RequestState, RequestStatus, SampledToken, SamplingParams
from servelib.spans import SpanLog, Stage

OPERATIONS = 5_000
SCHEDULERS: dict[str, Callable[[], Scheduler]] = {
    "slots": lambda: Scheduler(SlotPool(4, 24), Limits(4, 30)),
    "slots, chunks": lambda: Scheduler(SlotPool(6, 24), Limits(4, 6), share=by_chunks(3)),
    "blocks": lambda: Scheduler(BlockPool(10, 3), Limits(8, 24)),
    "blocks, chunks, guesses": lambda: Scheduler(
        BlockPool(10, 3), Limits(6, 8), share=by_chunks(4), guess=lambda state: [1, 2, 3]
    ),
    "prefix": lambda: Scheduler(PrefixPool(3, 24), Limits(3, 24)),
}


def request(name: str, prompt: int = 3, tokens: int = 4) -> Request:
    return Request(name, tuple(range(prompt)), SamplingParams(max_tokens=tokens, ignore_eos=True))


class Watched:
    """A scheduler, and a book of what may be true of it."""

    def __init__(self, scheduler: Scheduler) -> None:
        self.scheduler = scheduler
        self.arrived: dict[str, int] = {}  # in order of arrival
        self.ended = 0
        self.states: dict[str, RequestState] = {}
        self.alive: set[str] = set()
        self.refused = 0

    def add(self, made: Request) -> None:
        state = RequestState(made)
        try:
            self.scheduler.add(state)
        except InvalidRequestError:
            self.refused += 1
            return
        self.arrived[made.request_id] = len(self.arrived)
        self.states[made.request_id] = state
        self.alive.add(made.request_id)

    def abort(self, name: str) -> None:
        self.scheduler.abort(name)
        if name in self.alive:
            self.end(name)

    def end(self, name: str) -> None:
        assert name in self.alive, "a request ended twice"
        self.alive.remove(name)
        self.ended += 1

    def commit(self, batch: Batch, rng: random.Random) -> None:
        def result(samples: int) -> list[SampledToken] | Exception:
            if rng.random() < 0.02:
                return RuntimeError("chosen to fail")
            taken = rng.randint(1, samples) if samples else 0
            return [SampledToken(rng.randrange(SMALL.vocab_size)) for _ in range(taken)]

        for output in self.scheduler.commit(batch, [result(row.samples) for row in batch.rows]):
            if output.finish_reason:
                self.end(output.request_id)

    def check(self) -> None:
        scheduler = self.scheduler
        scheduler.check_integrity()
        line = [self.arrived[name] for name in (*scheduler._running, *scheduler._waiting)]
        assert line == sorted(line), "somebody runs, or waits, before an earlier arrival"
        assert self.alive == {*scheduler._running, *scheduler._waiting}, "a request is lost"


def check_batch(scheduler: Scheduler, batch: Batch) -> None:
    assert batch.tokens <= scheduler.limits.max_num_batched_tokens
    assert len(batch.rows) <= scheduler.limits.max_num_seqs
    assert len({row.request_id for row in batch.rows}) == len(batch.rows)
    for row in batch.rows:
        assert len(row.ids) >= max(1, row.samples)
        ahead = row.state.all_ids[row.start :]
        assert list(row.ids[: len(ahead)]) == ahead[: len(row.ids)], "it runs other tokens than come next"
        decodes = bool(row.state.output_ids) and row.start == row.state.length - 1
        assert (row.stage is Stage.DECODE) == decodes, "what runs again after a preemption is a prefill"
        asked, end = row.state.request, row.start + len(row.ids)
        assert end < len(asked.prompt_ids) + asked.sampling.max_tokens, "a guess past the last token"
        if isinstance(scheduler.pool, PrefixPool):
            assert scheduler.pool.room[row.request_id] == end, "room is for what is held and what is new"
    # Whoever has a place and only decodes is never left out for somebody else's prompt.
    inside = {row.request_id for row in batch.rows}
    for name, state in scheduler._running.items():
        if state.output_ids and state.computed == state.length - 1:
            assert name in inside


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("name", SCHEDULERS)
def test_five_thousand_operations(name: str, seed: int):
    rng = random.Random(f"{name} {seed}")
    watched = Watched(SCHEDULERS[name]())
    scheduler = watched.scheduler
    batch: Batch | None = None
    for i in range(OPERATIONS):
        names = list(islice(reversed(watched.arrived), 20))
        kind = rng.choices(["add", "step", "abort", "twice"], [30, 60, 8, 2])[0]
        if kind == "add" and scheduler.waiting < 12:
            watched.add(request(f"r{i}", rng.randint(1, 18), rng.randint(1, 9)))
        elif kind == "step" and batch is None:
            batch = scheduler.schedule()  # committed later: aborts and arrivals come between
            check_batch(scheduler, batch)
        elif kind == "step" and batch is not None:
            watched.commit(batch, rng)
            batch = None
        elif kind == "abort" and names:
            watched.abort(rng.choice(names))
        elif kind == "twice" and names:
            watched.add(request(rng.choice(names) if rng.random() < 0.5 else f"r{i}", 30))
            watched.abort("nobody")
        watched.check()
    if batch is not None:
        watched.commit(batch, rng)
    for _ in range(10_000):
        if not (scheduler.running or scheduler.waiting):
            break
        batch = scheduler.schedule()
        assert batch.rows, "work is left and nobody runs"
        watched.commit(batch, rng)
    assert not watched.alive
    assert watched.ended == len(watched.arrived) > 500
    assert watched.refused > 0
    scheduler.pool.check_integrity(set())
    assert (scheduler.preemptions > 0) == name.startswith("blocks")


def engine(model: Any, scheduler: Scheduler, **parts: Any) -> ContinuousEngine:
    pool = scheduler.pool
    assert isinstance(pool, SlotPool)
    return ContinuousEngine(model, model.new_slots(pool.slots, pool.size), scheduler, **parts)


def test_a_request_added_during_a_step_starts_in_the_next():
    made: list[ContinuousEngine] = []

    class Visited(TextModel):
        def run(self, batch: Batch, cache: Any) -> Any:
            name = f"visitor {len(self.batches)}"
            made[0].add_request(request(name, tokens=2))
            self.added.append((name, len(self.batches)))
            return super().run(batch, cache)

        added: list[tuple[str, int]] = []  # noqa: RUF012 - one test

    model = Visited()
    made.append(engine(model, Scheduler(SlotPool(8, 48), Limits(8, 48))))
    made[0].add_request(request("first"))
    for _ in range(20):
        made[0].step()
    first_step: dict[str, int] = {}
    for i, batch in enumerate(model.batches):
        for row in batch.rows:
            first_step.setdefault(row.request_id, i)
    waits = [first_step[name] - step for name, step in model.added[:-1]]
    assert waits == [1] * 19


@pytest.mark.parametrize("name", [n for n in ANY_MODEL if n.startswith("continuous")])
def test_nobody_waits_behind_a_later_arrival(name: str):
    """The number is 0: in no step is a request admitted while an earlier one waits."""
    model = TextModel()
    served = ANY_MODEL[name](model)
    rng = random.Random(name)
    order = []
    for i in range(60):
        asked = request(f"r{i}", rng.randint(1, 30), rng.randint(1, 8))
        order.append(asked.request_id)
        served.add_request(asked)
        if i % 3 == 0:
            served.step()
    drain(served)
    started = list(dict.fromkeys(row.request_id for batch in model.batches for row in batch.rows))
    assert started == order


def test_a_stream_has_a_token_in_every_step_whoever_is_let_in():
    """With chunks too: the gap between two tokens of one request is one step."""
    model = TextModel()
    served = engine(model, Scheduler(SlotPool(4, 48), Limits(4, 8), share=by_chunks(48)))
    served.add_request(request("short", 2, 30))
    served.add_request(request("long", 40, 5))  # its prompt alone fills five steps
    served.add_request(request("third", 20, 5))
    outputs = [{output.request_id for output in served.step()} for _ in range(30)]
    assert all("short" in step for step in outputs)


def test_a_prompt_larger_than_a_step_takes_whole_steps_alone():
    model = TextModel()
    served = engine(model, Scheduler(SlotPool(4, 48), Limits(4, 8)))
    for asked in (request("a", 3, 2), request("long", 20, 3), request("b", 3, 2)):
        served.add_request(asked)
    drain(served)
    assert [batch.sequences for batch in model.batches] == [
        [(3, 0)], [(1, 3)], [(8, 0)], [(8, 8)], [(4, 16), (3, 0)], [(1, 20), (1, 3)], [(1, 21)],
    ]  # fmt: skip


REQUESTS = [request(f"r{i}", 1 + i % 7, 3 + i % 5) for i in range(12)]


def served_by(made: ContinuousEngine) -> dict[str, list[int]]:
    found: dict[str, list[int]] = {}
    for asked in REQUESTS:
        made.add_request(asked)
    while made.has_work:
        for output in made.step():
            found.setdefault(output.request_id, []).extend(output.token_ids)
        made.scheduler.check_integrity()
    return found


def alone() -> dict[str, list[int]]:
    return {r.request_id: [t.token_id for t in naive(TextModel(), r)[0]] for r in REQUESTS}


@pytest.mark.parametrize(("blocks", "preempts"), [(4, True), (9, True), (1000, False)])
def test_preempted_requests_get_the_same_tokens(blocks: int, preempts: bool):
    scheduler = Scheduler(BlockPool(blocks, 4), Limits(8, 48))
    assert served_by(ContinuousEngine(TextModel(), Blocks(blocks, 4), scheduler)) == alone()
    assert (scheduler.preemptions > 0) == preempts


def test_reused_prefixes_give_the_same_tokens():
    pool = PrefixPool(3, 48)
    model = TextModel()
    scheduler = Scheduler(pool, Limits(3, 48))
    assert served_by(ContinuousEngine(model, model.new_slots(3, 48), scheduler)) == alone()
    assert pool.reused > 0
    alone_run = sum(len(r.prompt_ids) + r.sampling.max_tokens - 1 for r in REQUESTS)
    assert sum(batch.tokens for batch in model.batches) == alone_run - pool.reused


def test_verified_guesses_give_the_same_tokens_in_fewer_steps():
    plain, model = TextModel(), TextModel()
    assert served_by(engine(plain, Scheduler(SlotPool(12, 48), Limits(12, 96)))) == alone()
    guesser = Guesser(model)
    scheduler = Scheduler(SlotPool(12, 48), Limits(12, 96), guess=guesser.guess)
    assert served_by(engine(model, scheduler, sampler=guesser.sample)) == alone()
    assert guesser.right > 0
    assert guesser.wrong > 0
    assert len(model.batches) < len(plain.batches)


def test_a_guess_takes_nobodys_place():
    """Four blocks of two: guesses that do not fit are left out, where a needed token would preempt."""
    scheduler = Scheduler(BlockPool(4, 2), Limits(2, 48), guess=lambda state: [1] * 6)
    states = [RequestState(request(name, 3, 5)) for name in "ab"]
    for state in states:
        scheduler.add(state)
    batch = scheduler.schedule()
    scheduler.commit(batch, [[SampledToken(1)]] * 2)
    assert [len(row.ids) for row in scheduler.schedule().rows] == [1, 1]
    assert scheduler.preemptions == 0


def test_nobody_joins_while_somebody_with_a_place_cannot_run():
    paused = False

    def share(remaining: int, left: int, most: int) -> int:
        return 0 if paused else min(remaining, 4)

    scheduler = Scheduler(SlotPool(2, 24), Limits(2, 24), share=share)
    first, second = RequestState(request("first", 10)), RequestState(request("second", 2))
    scheduler.add(first)
    scheduler.commit(scheduler.schedule(), [[]])
    scheduler.add(second)
    paused = True
    assert scheduler.schedule().rows == ()
    paused = False
    assert [row.request_id for row in scheduler.schedule().rows] == ["first", "second"]


def test_a_preempted_request_does_not_come_back_in_the_same_step():
    scheduler = Scheduler(BlockPool(4, 2), Limits(2, 24), share=by_chunks(1))
    old, young = RequestState(request("old", 5, 3)), RequestState(request("young", 3, 3))
    scheduler.add(old)
    scheduler.add(young)
    while not scheduler.preemptions:
        batch = scheduler.schedule()
        scheduler.commit(batch, [[SampledToken(1)] if row.samples else [] for row in batch.rows])
    assert [row.request_id for row in batch.rows] == ["old"]
    assert (scheduler.running, scheduler.waiting) == (1, 1)


def test_an_abort_while_its_step_runs_ends_it_once():
    scheduler = Scheduler(SlotPool(2, 8), Limits(2, 8))
    for name in "ab":
        scheduler.add(RequestState(request(name)))
    batch = scheduler.schedule()
    scheduler.abort("a")
    outputs = scheduler.commit(batch, [[SampledToken(1)]] * 2)
    assert [output.request_id for output in outputs] == ["b"]
    scheduler.check_integrity()


@pytest.mark.parametrize(
    "harm",
    [
        lambda made: made.pool._free.pop(),
        lambda made: made.pool._held.update(b=made.pool._held["a"]),
        lambda made: made.pool._held.pop("a"),
        lambda made: made._running.pop("a"),
        lambda made: made._waiting.update(a=RequestState(request("a"))),
        lambda made: setattr(made._waiting["c"], "computed", 1),
        lambda made: setattr(made._waiting["c"], "status", RequestStatus.RUNNING),
        lambda made: setattr(made._running["a"], "status", RequestStatus.FINISHED),
    ],
    ids=["lost", "shared", "held by nobody", "left behind", "waits and runs", "holds", "runs", "is over"],
)
def test_what_is_lost_or_shared_or_in_the_wrong_line_is_found(harm: Callable[[Any], None]):
    scheduler = Scheduler(SlotPool(3, 8), Limits(2, 8))
    for name in "abc":
        scheduler.add(RequestState(request(name)))
    scheduler.schedule()
    assert (scheduler.running, scheduler.waiting) == (2, 1)
    scheduler.check_integrity()
    harm(scheduler)
    with pytest.raises(AssertionError):
        scheduler.check_integrity()


def test_limits_that_cannot_be_are_refused():
    with pytest.raises(InvalidRequestError, match="max_num_batched_tokens"):
        Limits(8, 7)
    with pytest.raises(InvalidRequestError, match="max_num_seqs"):
        Limits(0)
    with pytest.raises(InvalidRequestError, match="slot size"):
        SlotPool(1, 0)


@pytest.mark.parametrize("tokens", [-1, 0, 1])
def test_a_request_as_large_as_a_slot(tokens: int):
    served = engine(TextModel(), Scheduler(SlotPool(2, 16), Limits(2, 32)))
    asked = request("a", 10, 6 + tokens)
    if tokens > 0:
        with pytest.raises(InvalidRequestError, match="at most 16"):
            served.add_request(asked)
        assert not served.has_work
        return
    served.add_request(asked)
    assert [t for output in drain(served) for t in output.tokens] == naive(TextModel(), asked)[0]


def test_spans_of_a_batch_share_its_times():
    clock, log = VirtualClock(), SpanLog()

    class Slow(TextModel):
        def run(self, batch: Batch, cache: Any) -> Any:
            clock.advance(float(batch.tokens))
            return super().run(batch, cache)

    served = engine(Slow(), Scheduler(SlotPool(2, 16), Limits(2, 16)), clock=clock, spans=log)
    for name, prompt in (("a", 3), ("b", 2)):
        served.add_request(request(name, prompt, 2))
    drain(served)
    for name, prompt in (("a", 3), ("b", 2)):
        spans = [(s.stage, s.start, s.end, s.new_tokens, s.cached_tokens) for s in log.spans(name)]
        assert spans == [
            (Stage.QUEUE, 0.0, 0.0, 0, 0),
            (Stage.PREFILL, 0.0, 5.0, prompt, 0),
            (Stage.SAMPLE, 5.0, 5.0, 0, 0),
            (Stage.DECODE, 5.0, 7.0, 1, prompt),
            (Stage.SAMPLE, 7.0, 7.0, 0, 0),
        ]


def test_the_rows_of_a_step_are_in_order_of_joining():
    model = TextModel()
    served = ANY_MODEL["continuous, chunks of 3"](model)
    for i in range(9):
        served.add_request(request(f"r{i}", 1 + 5 * (i % 3), 4))
    drain(served)
    for batch in model.batches:
        order = [int(row.request_id[1:]) for row in batch.rows]
        assert all(a < b for a, b in pairwise(order))
