"""The checks of chapter 6: an admission loop of your own, and the waste of a static batch."""

from __future__ import annotations

import itertools
import random
from collections.abc import Callable, Sequence
from typing import Any

from servelib.engine.scheduler import Limits, Scheduler
from servelib.engine.static import StaticEngine
from servelib.exercises.admitting import Admit, Waiting, World
from servelib.exercises.check import Check, Report, run_checks
from servelib.exercises.number import check_number
from servelib.kv.pool import SlotPool
from servelib.model.scripted import ScriptedModel
from servelib.request import Request, RequestState, SampledToken, SamplingParams
from servelib.spans import Stage

TOKEN = 65


def check_admission(admit: Admit, *, limit: float = 5.0) -> Report:
    """Test an admission loop, ``admit(waiting, running, free, limits)``, against the scheduler's promises.

    It moves requests from ``waiting`` (a deque) to ``running`` (request id -> slot), with slots out of
    ``free``. Which free slot it takes is its own affair. Never raises: the report explains.
    """
    checks: list[tuple[str, Callable[[Admit], None]]] = [
        ("with nobody waiting, nobody gets in", _nobody),
        ("one request waits and all is free: it gets in, with a slot", _one),
        ("all who fit get in, in one step", _all),
        ("the first to arrive gets in first", _order),
        ("requests join while others run", _joins),
        ("no more than max_num_seqs run", _most),
        ("each has a slot of its own, also after others have left", _slots),
        ("the prompts of a step stay within its tokens, together", _budget),
        ("a prompt that just fits gets in", _just),
        ("a token of the step is kept for each that runs already", _kept),
        ("behind a request that does not fit, all wait", _head),
        ("300 random steps: whom the Scheduler lets in, in the same order", _as_the_scheduler),
    ]
    return run_checks(
        "Your admission loop",
        [Check(name, lambda run=run: run(admit)) for name, run in checks],  # type: ignore[misc]
        limit=limit,
    )


def static_waste(lengths: Sequence[int], size: int) -> float:
    """The wasted share of the decode places of static batches, over all batches that can come.

    ``lengths`` are equally likely and independent. Every one of the ``len(lengths) ** size`` batches runs
    once through ``StaticEngine``, and its own count says what was wasted: no luck in it.
    """
    engine = StaticEngine(ScriptedModel([TOKEN]), size)
    for number, batch in enumerate(itertools.product(lengths, repeat=size)):
        for row, length in enumerate(batch):
            sampling = SamplingParams(max_tokens=length, ignore_eos=True)
            engine.add_request(Request(f"{number}-{row}", (TOKEN,), sampling))
    while engine.has_work:
        engine.step()
    return engine.waste.finished / (engine.waste.finished + engine.waste.decodes)


def check_waste(answer: Any, *, short: int = 10, long: int = 50, size: int = 4) -> Report:
    """Check the wasted share of a static batch's decode places, half of the answers short, half long.

    Right within 1 % of itself, compared with what ``StaticEngine`` counts. Never raises.
    """
    right = static_waste((short, long), size)
    mean = (short + long) / 2
    longest = long - (long - short) / 2**size  # the mean of the longest of a batch
    return check_number(
        "The waste of a static batch",
        answer,
        right,
        tried=f"your share, where answers have {short} or {long} tokens, batches of {size}",
        expected="the share of decode places that StaticEngine wastes",
        hint="Used: the mean answer. Taken: the mean of the longest of a batch. Both less one token, which "
        "the prefill gives. The share is 1 - used / taken.",
        slips=[
            (100 * right, "That is in per cent. Give the share itself, between 0 and 1."),
            (1 - right, "That is the share that was used. The rest is wasted."),
            (1 - mean / longest,
             "Nearly. The first token of an answer comes from the prefill, so each has one decode less."),
            (1 - (mean - 1) / (long - 1),
             f"You take the longest to be {long} always. One batch in {2**size} has short answers only."),
            (1 - mean / long,
             f"You take the longest to be {long} always, and forget that the prefill gives a token."),
            (right / (1 - right), "That is wasted over used. The share is wasted over all places taken."),
            (0.0, "The mean answer says what is used. How long does the batch run?"),
        ],
        tolerance=0.01,
    )  # fmt: skip


def _nobody(admit: Admit) -> None:
    World(admit).expect("an empty queue", [], "Look whether anybody waits before you look at waiting[0].")
    full = World(admit, slots=1).run(A=0)
    full.expect("an empty queue, and no slot free", [], "Look whether there is a slot before you take one.")


def _one(admit: Admit) -> None:
    hint = (
        "Take it from waiting, take a slot from free, and write running[request_id] = slot. Change the three "
        "that you were given; new ones of your own are not seen."
    )
    World(admit).arrive(A=10).expect("A waits, with a prompt of 10 tokens; 8 slots, 64 tokens", ["A"], hint)


def _all(admit: Admit) -> None:
    hint = "One step may let many in: while there is room, not if there is room."
    World(admit).arrive(A=10, B=5, C=20).expect(
        "A, B and C wait, 35 prompt tokens of 64", ["A", "B", "C"], hint
    )


def _order(admit: Admit) -> None:
    world = World(admit, slots=2, max_num_seqs=2).arrive(A=9, B=5, C=7)
    hint = "Whoever has waited longest comes first: waiting[0], and waiting.popleft() to take it out."
    world.expect("A, B and C wait in this order, and there are two slots", ["A", "B"], hint)


def _joins(admit: Admit) -> None:
    hint = (
        "You wait until nobody runs: that is static batching. Count what is left beside those who run, and "
        "let the next ones in."
    )
    world = World(admit, slots=4, max_num_seqs=4).run(A=0, B=1).arrive(C=8, D=8)
    world.expect("A and B run, C and D wait, two of four slots are free", ["C", "D"], hint)


def _most(admit: Admit) -> None:
    hint = (
        "Those who run already count, and so does each that you let in: compare len(running) with "
        "limits.max_num_seqs each time round."
    )
    world = World(admit, slots=6, max_num_seqs=3).run(A=0).arrive(B=4, C=4, D=4)
    world.expect("A runs, B, C and D wait; max_num_seqs is 3, and 5 slots are free", ["B", "C"], hint)
    world = World(admit, slots=6, max_num_seqs=1).run(A=0).arrive(B=4)
    world.expect("A runs, B waits; max_num_seqs is 1", [], hint)
    hint = "There is no slot left. Each needs one of its own, so look whether free is empty each time round."
    world = World(admit, slots=2, max_num_seqs=6).run(A=0).arrive(B=4, C=4)
    world.expect("A runs, B and C wait; max_num_seqs is 6, and one slot is free", ["B"], hint)


def _slots(admit: Admit) -> None:
    world = World(admit, slots=4, max_num_seqs=4).arrive(A=4, B=4, C=4)
    hint = "All of them fit: a slot is free for each, and a step has tokens enough."
    world.expect("A, B and C wait, four slots are free", ["A", "B", "C"], hint)
    world.leave("A")
    world.leave("B")
    world.arrive(D=4, E=4)
    world.expect("then A and B leave, C still runs, and D and E arrive", ["D", "E"], hint)


def _budget(admit: Admit) -> None:
    hint = (
        "A step runs at most limits.max_num_batched_tokens. Take each prompt that you let in off what is "
        "left, and compare the next one with that."
    )
    world = World(admit, tokens=64).arrive(A=30, B=30, C=30)
    world.expect("A, B and C wait with 30 prompt tokens each; a step has 64", ["A", "B"], hint)
    world.expect(
        "the next step, A and B run",
        ["C"],
        "Each step has all its tokens again, less one for each that runs.",
    )


def _kept(admit: Admit) -> None:
    hint = (
        "Each running request needs a token of this step for itself, or its user waits for somebody else's "
        "prompt. Begin with limits.max_num_batched_tokens - len(running)."
    )
    world = World(admit, tokens=64).run(A=0, B=1, C=2).arrive(D=62)
    world.expect("A, B and C run, D waits with 62 prompt tokens; a step has 64", [], hint)
    hint = (
        "The token is kept for those who ran before this step. Who joins now brings its prompt, and no "
        "decode besides: count the running ones once, before the loop."
    )
    world = World(admit, tokens=64).run(A=0).arrive(B=31, C=32)
    world.expect("A runs, B and C wait with 31 and 32 prompt tokens; a step has 64", ["B", "C"], hint)


def _just(admit: Admit) -> None:
    hint = "Off by one: what is exactly as large as what is left does fit."
    World(admit, tokens=64).arrive(A=64).expect("A waits with 64 prompt tokens; a step has 64", ["A"], hint)
    world = World(admit, slots=3, max_num_seqs=3).run(A=0, B=1).arrive(C=4)
    world.expect("A and B run, C waits; max_num_seqs is 3", ["C"], hint)


def _head(admit: Admit) -> None:
    hint = (
        "You let a later, smaller request pass. Under load there is always one, and the large one never gets "
        "in. Stop at the first that does not fit."
    )
    world = World(admit, tokens=64).arrive(A=40, B=50, C=4)
    world.expect("A, B and C wait with 40, 50 and 4 prompt tokens; a step has 64", ["A"], hint)


def _as_the_scheduler(admit: Admit) -> None:
    for seed, (slots, most, tokens) in enumerate(((6, 6, 64), (4, 8, 64), (8, 3, 40))):
        world = World(admit, slots=slots, max_num_seqs=most, tokens=tokens)
        scheduler = Scheduler(SlotPool(slots, 100), Limits(most, tokens))
        rng, number = random.Random(seed), 0
        for step in range(100):
            for _ in range(rng.choice((0, 0, 1, 1, 3))):
                number += 1
                prompt = (TOKEN,) * rng.randint(1, tokens)
                sampling = SamplingParams(max_tokens=rng.randint(1, 12), ignore_eos=True)
                request = Request(f"request {number}", prompt, sampling)
                scheduler.add(RequestState(request, eos_id=0))
                world.waiting.append(Waiting(request.request_id, len(prompt)))
            batch = scheduler.schedule()
            rows = [row for row in batch.rows if row.stage is Stage.PREFILL]
            tried = (
                f"random step {step + 1}; {len(world.running)} run, max_num_seqs is {most}, {slots} slots, "
                f"{tokens} tokens a step; prompts that wait: {[r.prompt_tokens for r in world.waiting]}"
            )
            hint = "Each rule holds alone, by the checks above. What do you do when several bind at once?"
            world.expect(tried, [row.request_id for row in rows], hint)
            for output in scheduler.commit(batch, [(SampledToken(TOKEN),)] * len(batch.rows)):
                if output.finish_reason is not None:
                    world.leave(output.request_id)
