"""The checks of chapter 1: a naive engine of your own, and the rate at which it saturates."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from typing import Any

from servelib.engine.naive import NaiveEngine
from servelib.exercises.check import Check, Mistake, Report, run_checks
from servelib.exercises.number import check_number
from servelib.exercises.session import UNFINISHED, MakeEngine, Session
from servelib.request import FinishReason, Request, SamplingParams, StepOutput


def check_engine(make_engine: MakeEngine, *, limit: float = 5.0) -> Report:
    """Test a naive engine: one request at a time, in arrival order, one token a step.

    ``make_engine`` is the reader's class, or any function of a model that gives an engine. Each of
    the checks gets a new one and at most ``limit`` seconds. Never raises: the report explains.
    """
    checks: list[tuple[str, Callable[[MakeEngine], None]]] = [
        ("with nothing to do, step() returns an empty list", _idle),
        ("add_request() only queues", _queues),
        ("one step, one run of the model, one token", _one_token),
        ("the model runs on the whole sequence, then the token is sampled", _whole_sequence),
        ("the request ends at max_tokens, with LENGTH", _length),
        ("the request ends at the end token, with STOP", _stop),
        ("after the last token the engine is idle, and takes new work", _released),
        ("the first to arrive is the first to be served", _arrival_order),
        ("the next request starts when the one before has ended", _one_at_a_time),
        ("an arrival in the middle does not disturb the running request", _arrival_midway),
        ("twenty random requests get exactly the tokens of NaiveEngine", _same_as_naive),
    ]
    return run_checks("Your engine", [_check(name, run, make_engine) for name, run in checks], limit=limit)


def check_saturation(answer: Any, *, service_seconds: float, output_tokens: float) -> Report:
    """Check the arrival rate (requests/s) that a server taking one request at a time can sustain.

    One request takes ``service_seconds`` from start to end, for ``output_tokens`` tokens on average.
    Right within 5 %. Never raises: the report explains the usual slips.
    """
    rate = 1.0 / service_seconds
    thousand = "A factor of 1,000: the time is in seconds, and you read it as milliseconds."
    return check_number(
        "Saturation",
        answer,
        rate,
        tried=f"your answer, where one request keeps the server for {service_seconds:.3g} s",
        expected="the arrival rate, in requests per second, that just keeps the server busy all the time",
        hint="In one second the server can finish 1 / (seconds per request) requests, and no more.",
        slips=[
            (
                service_seconds,
                "That is the time of one request. The rate is how many of them fit in a second.",
            ),
            (rate * output_tokens, "That is tokens per second: a request needs all of its output tokens."),
            (rate / 1000, thousand),
            (rate * 1000, thousand),
            (service_seconds * 1000, "That is the time of one request in milliseconds; a rate is 1 / time."),
            (
                service_seconds / output_tokens,
                "That is the time of one token. A request needs all its tokens.",
            ),
        ],
    )


def _check(name: str, run: Callable[[MakeEngine], None], make_engine: MakeEngine) -> Check:
    return Check(name, lambda: run(make_engine))


def _request(name: str, max_tokens: int, *, ignore_eos: bool = False) -> Request:
    prompt = (*name.encode(), 58, 32)
    return Request(name, prompt, SamplingParams(max_tokens=max_tokens, ignore_eos=ignore_eos))


def _ids(outputs: Sequence[StepOutput]) -> list[int]:
    return [token_id for output in outputs for token_id in output.token_ids]


def _idle(make_engine: MakeEngine) -> None:
    session = Session(make_engine)
    tried = "a new engine without a request"
    output = session.step(tried)
    if output is not None:
        raise Mistake(tried, "an empty list", repr(output), "Return [] before you touch the model.")
    if session.model.calls:
        raise Mistake(tried, "no run of the model", "one run", "Return [] before you touch the model.")


def _queues(make_engine: MakeEngine) -> None:
    session = Session(make_engine)
    tried = "one add_request(), no step()"
    session.add(_request("A", 3))
    if session.model.calls:
        got = f"{len(session.model.calls)} runs"
        raise Mistake(tried, "no run of the model", got, "add_request() only queues; step() does the work.")
    if not session.has_work():
        hint = "has_work is True while a request waits or runs."
        raise Mistake(tried, "has_work is True", "has_work is False", hint)


def _one_token(make_engine: MakeEngine) -> None:
    session = Session(make_engine)
    session.add(_request("A", 3))
    tried = "one request with max_tokens=3"
    output = session.token(tried)
    if output.request_id != "A":
        hint = "Give StepOutput the id of the request: state.request.request_id."
        raise Mistake(tried, "an output for request 'A'", repr(output.request_id), hint)


def _whole_sequence(make_engine: MakeEngine) -> None:
    session = Session(make_engine)
    request = session.add(_request("A", 3))
    sequence = request.prompt_ids
    for turn in ("first", "second"):
        tried = f"the {turn} step() of a request with {len(request.prompt_ids)} prompt tokens"
        output = session.token(tried)
        seen = session.model.calls[-1] if session.model.calls else ()
        if seen != sequence:
            hint = "Without a cache, pass the whole sequence at every step: state.all_ids, prompt and output."
            if seen == sequence[-1:]:
                hint = "You feed only the last token, and no cache holds what came before it. " + hint
            elif seen == request.prompt_ids:
                hint = "You feed the prompt alone, and the tokens made so far are lost. " + hint
            got = f"{len(seen)} tokens: {list(seen)}"
            raise Mistake(tried, f"the model sees {len(sequence)} tokens: {list(sequence)}", got, hint)
        if session.model.told[-1:] != [sequence]:
            hint = "Tell the state about each token with state.append(token_id): the sampler reads it."
            got = f"{len(session.model.told[-1]) if session.model.told else 0} tokens"
            raise Mistake(tried, f"the RequestState holds {len(sequence)} tokens", got, hint)
        sequence = (*sequence, *output.token_ids)


def _length(make_engine: MakeEngine) -> None:
    for budget in (1, 4):
        session = Session(make_engine)
        session.add(_request("A", budget))
        tried = f"one request with max_tokens={budget}"
        session.ends_after(budget, FinishReason.LENGTH, tried)


def _stop(make_engine: MakeEngine) -> None:
    session = Session(make_engine, ends={"A": 3})
    session.add(_request("A", 8))
    tried = "a request whose third token is the end token (max_tokens=8)"
    session.ends_after(3, FinishReason.STOP, tried)
    session = Session(make_engine, ends={"A": 3})
    session.add(_request("A", 5, ignore_eos=True))
    tried = "the same with ignore_eos=True and max_tokens=5"
    session.ends_after(5, FinishReason.LENGTH, tried)


def _released(make_engine: MakeEngine) -> None:
    session = Session(make_engine)
    tried = "one request with max_tokens=2, after its last token"
    for name in ("A", "B"):
        session.add(_request(name, 2))
        outputs = [session.token(tried), session.token(tried)]
        if outputs[-1].finish_reason is None:
            hint = "Pass the reason that state.append(token_id) returns to StepOutput."
            raise Mistake(tried, "a finish reason", "None", hint)
        if session.has_work():
            hint = f"You do not let go of the finished request. {UNFINISHED}"
            raise Mistake(tried, "has_work is False", "has_work is True", hint)
        if session.step(tried) is not None or len(session.model.calls) % 2:
            raise Mistake(tried, "an empty list", "another token", f"The request is over. {UNFINISHED}")


def _arrival_order(make_engine: MakeEngine) -> None:
    session = Session(make_engine)
    tried = "requests A, B and C added in this order, two tokens each"
    for name in "ABC":
        session.add(_request(name, 2))
    order = list(dict.fromkeys(output.request_id for output in session.drain(tried)))
    if order != ["A", "B", "C"]:
        hint = "Take the one that has waited longest: self.waiting.popleft()."
        if order[:1] == ["C"]:
            hint = "You serve the newest first (last in, first out: pop() takes from the right). " + hint
        raise Mistake(tried, "served in the order A, B, C", "in the order " + ", ".join(order), hint)


def _one_at_a_time(make_engine: MakeEngine) -> None:
    session = Session(make_engine)
    tried = "requests A, B and C added in this order, three tokens each"
    for name in "ABC":
        session.add(_request(name, 3))
    served = "".join(output.request_id for output in session.drain(tried))
    if served != "AAABBBCCC":
        hint = "Keep the running request until it ends; only then take the next one from the queue."
        raise Mistake(tried, "tokens for A A A B B B C C C", "tokens for " + " ".join(served), hint)


def _arrival_midway(make_engine: MakeEngine) -> None:
    alone = Session(make_engine)
    alone.add(_request("A", 5))
    expected = _ids(alone.drain("one request with max_tokens=5"))
    session = Session(make_engine)
    tried = "request A (5 tokens), and request B added after two of its steps"
    session.add(_request("A", 5))
    outputs = [session.token(tried), session.token(tried)]
    session.add(_request("B", 2))
    outputs += session.drain(tried)
    served = "".join(output.request_id for output in outputs)
    if served != "AAAAABB":
        hint = "An arrival must not take the place of the running request: keep it until it ends."
        raise Mistake(tried, "tokens for A A A A A B B", "tokens for " + " ".join(served), hint)
    got = _ids(outputs[:5])
    if got != expected:
        hint = "Each request needs its own sequence: do not share a list between requests."
        raise Mistake(tried, f"A's tokens as when alone: {expected}", str(got), hint)


def _same_as_naive(make_engine: MakeEngine) -> None:
    rng = random.Random(1)
    names = [f"request {number}" for number in range(20)]
    ends = {name: rng.randint(1, 8) for name in names if rng.random() < 0.5}
    requests = [
        Request(
            name,
            tuple(rng.randrange(32, 127) for _ in range(rng.randint(1, 9))),
            SamplingParams(max_tokens=rng.randint(1, 7), ignore_eos=rng.random() < 0.3),
        )
        for name in names
    ]
    pauses = [rng.randint(0, 8) for _ in requests]
    theirs = _play(Session(make_engine, ends), requests, pauses)
    ours = _play(Session(NaiveEngine, ends), requests, pauses)
    for request in requests:
        name = request.request_id
        if theirs.get(name) != ours[name]:
            tried = (
                f"20 requests that arrive at odd moments; {name!r}, max_tokens={request.sampling.max_tokens}"
            )
            hint = (
                "Look at each step: whole sequence, sample, append, output. Is anything shared by requests?"
            )
            raise Mistake(tried, str(ours[name]), str(theirs.get(name)), hint)


def _play(
    session: Session, requests: Sequence[Request], pauses: Sequence[int]
) -> dict[str, tuple[list[int], FinishReason | None]]:
    """Each request's tokens and reason; request k is added ``pauses[k]`` steps after the one before."""
    tried = "20 requests that arrive at odd moments"
    outputs: list[StepOutput] = []
    for request, pause in zip(requests, pauses, strict=True):
        for _ in range(pause):
            if session.has_work():
                outputs.append(session.token(tried))
        session.add(request)
    outputs += session.drain(tried)
    played: dict[str, tuple[list[int], FinishReason | None]] = {}
    for output in outputs:
        before, _ = played.get(output.request_id, ([], None))
        played[output.request_id] = ([*before, *output.token_ids], output.finish_reason)
    return played
