"""The checks of chapter 1 accept every right solution, and name each usual mistake."""

from __future__ import annotations

import re
import time
from collections import deque
from typing import ClassVar

import pytest

from servelib.engine.naive import NaiveEngine
from servelib.exercises.ch01 import check_engine, check_saturation
from servelib.request import FinishReason, RequestState, StepOutput


class Given:
    """The part of the engine that the chapter gives."""

    name = "mine"

    def __init__(self, model):
        self.model = model
        self.waiting = deque()
        self.running = None

    @property
    def has_work(self):
        return self.running is not None or bool(self.waiting)

    def add_request(self, request):
        self.waiting.append(RequestState(request, eos_id=self.model.config.eos_id))

    def step(self):
        raise NotImplementedError("write step()")


class Solution(Given):
    """The folded solution of the chapter, word for word."""

    def step(self):
        if self.running is None:
            if not self.waiting:
                return []
            self.running = self.waiting.popleft()
        state = self.running
        logits = self.model.next_logits(state.all_ids)
        token = self.model.sample(logits, state)
        reason = state.append(token.token_id)
        if reason is not None:
            self.running = None
        return [StepOutput(state.request.request_id, (token,), reason)]


class WithCache(Given):
    """Keeps a cache and runs the last token alone."""

    cache = None

    def step(self):
        if not self.has_work:
            return []
        if self.running is None:
            self.running, self.cache = self.waiting.popleft(), self.model.new_cache()
        state = self.running
        ids = state.output_ids[-1:] or state.request.prompt_ids
        token = self.model.sample(self.model.next_logits(ids, self.cache), state)
        if state.append(token.token_id):
            self.running = None
        return [StepOutput(state.request.request_id, (token,), state.finish_reason)]


class OneQueue(Given):
    """No running request: the head of the queue stays there until it ends. Decides the end itself."""

    def __init__(self, model):
        self.model = model
        self.queue = []

    @property
    def has_work(self):
        return len(self.queue) > 0

    def add_request(self, request):
        self.queue.append(RequestState(request, self.model.config.eos_id))

    def step(self):
        if not self.queue:
            return ()
        state = self.queue[0]
        params = state.request.sampling
        token = self.model.sample(self.model.next_logits(tuple(state.all_ids)), state)
        state.output_ids.append(token.token_id)
        reason = None
        if token.token_id in state.end_ids:
            reason = FinishReason.STOP
        elif len(state.output_ids) == params.max_tokens:
            reason = FinishReason.LENGTH
        if reason:
            del self.queue[0]
        return [StepOutput(request_id=state.request.request_id, tokens=[token], finish_reason=reason)]


@pytest.mark.parametrize("make_engine", [Solution, WithCache, OneQueue, NaiveEngine, lambda m: Solution(m)])
def test_right_solutions_pass(make_engine):
    report = check_engine(make_engine)
    assert report.passed, str(report)
    assert bool(report)
    assert report.require() is report
    assert "all 11 checks pass" in str(report)


class NotWritten(Given):
    pass


class ReturnsNone(Given):
    def step(self):
        pass


class Bare(Solution):
    def step(self):
        out = super().step()
        return out[0] if out else []


class Yields(Solution):
    def step(self):
        yield from super().step()


class TokenIds(Solution):
    def step(self):
        return [StepOutput(o.request_id, o.token_ids, o.finish_reason) for o in super().step()]


class NoComma(Solution):
    def step(self):
        return [StepOutput(o.request_id, o.tokens[0], o.finish_reason) for o in super().step()]


class ReasonAsText(Solution):
    def step(self):
        return [
            StepOutput(o.request_id, o.tokens, o.finish_reason.value if o.finish_reason else None)
            for o in super().step()
        ]


class ToCompletion(Solution):
    def step(self):
        outputs = []
        while self.has_work:
            outputs += super().step()
        return outputs[-1:]


class Lifo(Given):
    def step(self):
        if self.running is None and self.waiting:
            self.running = self.waiting.pop()
        return Solution.step(self)


class RoundRobin(Given):
    def step(self):
        out = Solution.step(self)
        if self.running is not None:
            self.waiting.append(self.running)
            self.running = None
        return out


class NewestPreempts(Solution):
    def add_request(self, request):
        if self.running is not None:
            self.waiting.append(self.running)
            self.running = RequestState(request, self.model.config.eos_id)
        else:
            super().add_request(request)


class OwnEnd(Given):
    """Decides the end itself; the mistakes below change one line of it."""

    off = 0
    looks_for_end = True
    ignores_ignore_eos = False
    gives_reason = True
    lets_go = True
    order = "run, sample"

    def step(self):
        if self.running is None:
            if not self.waiting:
                return []
            self.running = self.waiting.popleft()
        state, params = self.running, self.running.request.sampling
        token = self.model.sample(self.model.next_logits(state.all_ids), state)
        state.output_ids.append(token.token_id)
        reason = None
        is_end = token.token_id == self.model.config.eos_id
        if self.looks_for_end and is_end and (self.ignores_ignore_eos or not params.ignore_eos):
            reason = FinishReason.STOP
        elif len(state.output_ids) >= params.max_tokens + self.off:
            reason = FinishReason.LENGTH
        if reason and self.lets_go:
            self.running = None
        return [StepOutput(state.request.request_id, (token,), reason if self.gives_reason else None)]


class OneTooMany(OwnEnd):
    off = 1


class OneTooFew(OwnEnd):
    off = -1


class NoEnd(OwnEnd):
    looks_for_end = False


class AlwaysEnds(OwnEnd):
    ignores_ignore_eos = True


class NoReason(OwnEnd):
    gives_reason = False


class NoReasonNoRelease(OwnEnd):
    gives_reason = lets_go = False


class KeepsFinished(OwnEnd):
    lets_go = False


class SamplesFirst(Given):
    def step(self):
        if not self.waiting:
            return []
        state = self.running = self.waiting.popleft()
        return [StepOutput(state.request.request_id, (self.model.sample(None, state),))]


class HidesIt(Given):
    def step(self):
        try:
            return SamplesFirst.step(self)
        except Exception:
            return []


class LastTokenOnly(Given):
    def step(self):
        if self.running is None:
            if not self.waiting:
                return []
            self.running = self.waiting.popleft()
        state = self.running
        token = self.model.sample(self.model.next_logits(state.all_ids[-1:]), state)
        if reason := state.append(token.token_id):
            self.running = None
        return [StepOutput(state.request.request_id, (token,), reason)]


class PromptOnly(Given):
    def step(self):
        if self.running is None:
            if not self.waiting:
                return []
            self.running = self.waiting.popleft()
        state = self.running
        token = self.model.sample(self.model.next_logits(state.request.prompt_ids), state)
        if reason := state.append(token.token_id):
            self.running = None
        return [StepOutput(state.request.request_id, (token,), reason)]


class StateNotTold(Given):
    made = ()

    def step(self):
        if self.running is None:
            if not self.waiting:
                return []
            self.running, self.made = self.waiting.popleft(), ()
        state = self.running
        token = self.model.sample(self.model.next_logits((*state.request.prompt_ids, *self.made)), state)
        self.made = (*self.made, token.token_id)
        return [StepOutput(state.request.request_id, (token,))]


class SharedQueue(Solution):
    everyones: ClassVar = deque()

    def __init__(self, model):
        super().__init__(model)
        self.waiting = self.everyones


class HasWorkMethod(Solution):
    def has_work(self):
        return self.running is not None or bool(self.waiting)


class WorksOnArrival(Solution):
    def add_request(self, request):
        super().add_request(request)
        self.model.next_logits(request.prompt_ids)


class NeverIdle(Solution):
    @property
    def has_work(self):
        return bool(self.model.calls) or super().has_work


class AlwaysBusy(Solution):
    has_work = True


class WrongId(Solution):
    def step(self):
        return [StepOutput("request", o.tokens, o.finish_reason) for o in super().step()]


class ModelLoop(Solution):
    def step(self):
        while True:
            super().step()
            self.model.next_logits([1])


MISTAKES = {
    NotWritten: "Nothing is written there yet",
    ReturnsNone: "A function without a return gives None",
    Bare: "a bare StepOutput.*Put it in a list",
    Yields: "yield turns step",
    TokenIds: r"\(token,\), with the comma, not token.token_id",
    NoComma: r"\(token,\), with the comma",
    ReasonAsText: "Use FinishReason.LENGTH",
    ToCompletion: r"3 runs of the model.*goes on until the request is finished",
    Lifo: "newest first.*last in, first out",
    RoundRobin: "Keep the running request until it ends",
    NewestPreempts: "must not take the place of the running request",
    OneTooMany: "one token too many",
    OneTooFew: "Off by one, too early|stops early: off by one",
    NoEnd: "does not look for the end token",
    AlwaysEnds: "unless ignore_eos is set",
    NoReason: "forget the finish reason",
    NoReasonNoRelease: "forgets the finish reason",
    KeepsFinished: "do not let go of the finished request",
    SamplesFirst: "sample before the model has run",
    HidesIt: "sample before the model has run",
    LastTokenOnly: "feed only the last token, and no cache",
    PromptOnly: "feed the prompt alone",
    StateNotTold: r"Tell the state about each token with state.append",
    SharedQueue: "shared by all of its engines",
    HasWorkMethod: "Write @property",
    WorksOnArrival: "only queues",
    NeverIdle: "do not let go|stays True for ever",
    AlwaysBusy: "shared by all of its engines|has_work is True",
    WrongId: "id of the request",
    ModelLoop: "did not end.*the model was run 2000 times",
}


@pytest.mark.parametrize("broken", MISTAKES, ids=lambda cls: cls.__name__)
def test_each_mistake_is_named(broken):
    text = str(check_engine(broken))
    explained = " ".join(text.partition("The first failure")[2].split())
    assert re.search(MISTAKES[broken], explained), text
    assert "Traceback" not in text


def test_the_queue_left_behind_is_found_once_it_is_shared():
    SharedQueue.everyones.clear()
    report = check_engine(SharedQueue)
    assert not report.passed


def test_an_exception_of_the_reader_shows_their_line_and_not_ours():
    class Typo(Given):
        def step(self):
            return self.wating.popleft()

    text = str(check_engine(Typo))
    assert "AttributeError" in text
    assert "in step, line" in text
    assert "return self.wating.popleft()" in text
    assert "check.py" not in text
    assert "servelib" not in text


def test_a_wrong_call_of_our_code_shows_the_readers_line():
    class WrongCall(Given):
        def step(self):
            return [StepOutput("A")] if self.waiting else []

    text = str(check_engine(WrongCall))
    assert "TypeError" in text
    assert 'StepOutput("A")' in text


def test_a_step_that_waits_for_ever_is_stopped():
    class Waits(Given):
        def step(self):
            while not self.waiting:
                time.sleep(0.001)

    text = str(check_engine(Waits, limit=0.05))
    assert "did not end" in text
    assert "never comes" in text


def test_a_class_that_cannot_be_made_is_explained():
    assert "TypeError" in str(check_engine(lambda: None))
    assert "must return it" in str(check_engine(lambda model: None))


def test_require_raises_with_the_explanation():
    with pytest.raises(AssertionError, match="Put it in a list"):
        check_engine(Bare).require()


def test_html_escapes_and_says_the_verdict_in_words():
    page = check_engine(Bare)._repr_html_()
    assert "FAIL" in page
    assert "pass" in page
    assert "[StepOutput(...)]" in page
    assert "<module>" not in check_engine(lambda model: 1 / 0)._repr_html_()


SERVICE, TOKENS = 0.4, 32


@pytest.mark.parametrize("answer", [2.5, 2.4, 2.6, 5 / 2])
def test_capacity_right(answer):
    assert check_saturation(answer, service_seconds=SERVICE, output_tokens=TOKENS).passed


@pytest.mark.parametrize(
    ("answer", "hint"),
    [
        (0.4, "time of one request. The rate"),
        (80, "tokens per second"),
        (0.0025, "milliseconds"),
        (2500, "milliseconds"),
        (400, "in milliseconds; a rate"),
        (0.0125, "time of one token"),
        (2.2, "and no more"),
        (None, "Put your number"),
        ("2.5", "Put your number"),
        (float("nan"), "Put your number"),
        (..., "Put your number"),
        (True, "Put your number"),
    ],
)
def test_capacity_slips_are_named(answer, hint):
    report = check_saturation(answer, service_seconds=SERVICE, output_tokens=TOKENS)
    assert not report
    assert hint in " ".join(str(report).split())
