"""One new engine on a watched model, driven step by step; a wrong shape is explained, not tripped over."""

from __future__ import annotations

from collections.abc import Callable
from inspect import isgenerator
from typing import Any

from servelib.engine.protocol import Model
from servelib.exercises.check import Mistake
from servelib.exercises.watched import WatchedModel
from servelib.request import FinishReason, Request, SampledToken, StepOutput

MakeEngine = Callable[[Model], Any]  # the reader's class, or a function: what it gives may be anything yet

UNFINISHED = "Set self.running back to None when the request ends, or has_work stays True for ever."
MAX_STEPS = 200  # of a session; an engine that never turns idle is stopped here


class Session:
    """One new engine on one watched model. Every method raises ``Mistake`` on what is not as agreed."""

    def __init__(self, make_engine: MakeEngine, ends: dict[str, int] | None = None) -> None:
        self.model = WatchedModel(ends)
        self.engine = make_engine(self.model)
        if self.engine is None:
            hint = "A function that makes an engine must return it."
            raise Mistake("making your engine", "an engine", "None", hint)
        if self.has_work():
            hint = (
                "has_work must be worked out from the queue. And a queue in the body of the class is shared "
                "by all of its engines: make it in __init__, self.waiting = deque()."
            )
            raise Mistake("making a new engine", "has_work is False", "has_work is True", hint)

    def has_work(self) -> bool:
        """The engine's own answer."""
        value = self.engine.has_work
        if callable(value):
            hint = "Write @property on the line above def has_work(self)."
            raise Mistake("reading engine.has_work", "True or False", "a method", hint)
        return bool(value)

    def add(self, request: Request) -> Request:
        """Queue a request, and give it back."""
        self.engine.add_request(request)
        return request

    def step(self, tried: str) -> StepOutput | None:
        """One step: its output, or None for an empty list."""
        before = len(self.model.calls)
        out = self.engine.step()
        if self.model.mistake is not None:
            raise self.model.mistake
        output = _only_output(out, tried)
        runs = len(self.model.calls) - before
        if runs > 1 or (output is not None and len(output.tokens) > 1):
            hint = (
                "Your step() goes on until the request is finished. Return after one token: between two "
                "steps the server streams it and takes new arrivals. No loop is needed in step()."
            )
            got = f"{runs} runs of the model, {_tokens(len(output.tokens) if output else 0)}"
            raise Mistake(f"{tried}, one step()", "one run of the model and one token", got, hint)
        return output

    def token(self, tried: str) -> StepOutput:
        """One step that must give a token, and its output."""
        output = self.step(tried)
        if output is None:
            hint = "A step with work to do runs the model once and returns one token."
            raise Mistake(tried, "one StepOutput", "an empty list, though has_work was True", hint)
        return output

    def drain(self, tried: str) -> list[StepOutput]:
        """Step until idle, or complain."""
        outputs: list[StepOutput] = []
        for _ in range(MAX_STEPS):
            if not self.has_work():
                return outputs
            outputs.append(self.token(tried))
        got = f"still has_work after {MAX_STEPS} steps"
        raise Mistake(tried, "has_work turns False when all requests have ended", got, UNFINISHED)

    def ends_after(self, count: int, reason: FinishReason, tried: str) -> None:
        """Step until the only request ends: after ``count`` tokens, for ``reason``."""
        expected = f"{_tokens(count)}, the last one with FinishReason.{reason.name}"
        append = "state.append(token_id) gives the reason on the last token, and None before."
        for number in range(1, count + 2):
            if not self.has_work():
                hint = "Your engine stops early: off by one? Count the token just made, then compare."
                if number > count:
                    hint = "You forget the finish reason: pass it to StepOutput as its third argument."
                got = f"idle after {_tokens(number - 1)}, and no finish reason came"
                raise Mistake(tried, expected, got, f"{hint} {append}")
            found = self.token(tried).finish_reason
            if number == count and found is reason:
                return
            if found is not None:
                got = f"FinishReason.{found.name} on token {number}"
                if found is not reason:
                    hint = "STOP is for an end token (unless ignore_eos is set), LENGTH for max_tokens."
                elif number < count:
                    hint = "Off by one, too early? Count the token just made, then compare."
                else:
                    hint = "Off by one: that is one token too many. Count the token just made, then compare."
                raise Mistake(tried, expected, got, f"{hint} {append}")
        hint = "Your engine forgets the finish reason: pass it to StepOutput as its third argument."
        if reason is FinishReason.STOP:
            hint = "Your engine does not look for the end token, or forgets the finish reason."
        raise Mistake(tried, expected, f"{_tokens(count + 1)} and no finish reason", f"{hint} {append}")


def _only_output(out: Any, tried: str) -> StepOutput | None:
    """The one output in what step() returned. Raises ``Mistake`` on any other shape."""
    tried = f"{tried}, one step()"
    shape = "a list with one StepOutput, or an empty list when there is nothing to do"
    if out is None:
        raise Mistake(tried, shape, "None", "A function without a return gives None. Return the list.")
    if isinstance(out, StepOutput):
        hint = "Put it in a list: return [StepOutput(...)]. Later engines return several from one step."
        raise Mistake(tried, shape, "a bare StepOutput", hint)
    if isgenerator(out):
        hint = "yield turns step() into a generator, which has run nothing yet. Use return [ ... ]."
        raise Mistake(tried, shape, "a generator", hint)
    if not isinstance(out, list | tuple) or not all(isinstance(item, StepOutput) for item in out):
        raise Mistake(
            tried, shape, repr(out), "Build StepOutput(request_id, (token,), reason) for the token."
        )
    if len(out) > 1:
        got = f"{len(out)} of them"
        raise Mistake(tried, shape, got, "One step serves one request, and gives one token of it.")
    if not out:
        return None
    output: StepOutput = out[0]
    tokens: Any = output.tokens
    reason: Any = output.finish_reason
    if not isinstance(tokens, list | tuple) or not all(isinstance(token, SampledToken) for token in tokens):
        hint = "tokens is a tuple of what sample() returned: (token,), with the comma, not token.token_id."
        raise Mistake(tried, "tokens=(token,)", f"tokens={tokens!r}", hint)
    if not tokens:
        raise Mistake(tried, "tokens=(token,)", "no token", "Every step of this engine gives one token.")
    if reason is not None and not isinstance(reason, FinishReason):
        hint = "Use FinishReason.LENGTH or FinishReason.STOP. state.append(token_id) returns it, or None."
        raise Mistake(tried, "a FinishReason or None", repr(reason), hint)
    return output


def _tokens(count: int) -> str:
    return f"{count} token" if count == 1 else f"{count} tokens"
