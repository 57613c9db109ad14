"""The static engine: batches of a fixed size, padded to equal lengths, and nobody leaves before the end.

The first idea of batching, and chapter 6's lesson: everyone pays for the longest prompt and for the
longest answer of the batch, and whoever arrives meanwhile waits for all of it.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from servelib.clock import Clock, WallClock
from servelib.engine.protocol import PaddedModel
from servelib.errors import InvalidRequestError, check_int
from servelib.request import (
    FinishReason,
    Request,
    RequestState,
    RequestStatus,
    SampledToken,
    StepOutput,
)
from servelib.spans import Span, SpanLog, Stage

PAD = 0
"""What fills a row. Any id would do: nobody attends to a pad, and no output is taken of one."""


@dataclass(slots=True)
class Waste:
    """Tokens that ran, by what they were good for; each took a place in a step, and cost the same.

    ``prompts`` and ``decodes`` were asked for. ``padding`` stood before shorter prompts; ``finished``
    kept the places of rows whose request was over.
    """

    prompts: int = 0
    padding: int = 0
    decodes: int = 0
    finished: int = 0

    @property
    def used(self) -> int:
        """Tokens that somebody asked for."""
        return self.prompts + self.decodes

    @property
    def wasted(self) -> int:
        """Tokens that nobody asked for."""
        return self.padding + self.finished

    @property
    def share(self) -> float:
        """The wasted part of all; 0 before anything ran."""
        return self.wasted / (self.used + self.wasted) if self.used else 0.0


class StaticEngine:
    """Takes up to ``size`` waiting requests once the batch before has ended, and runs them together.

    A batch is filled in arrival order, as far as its longest prompt and its longest answer fit the
    context together. A finished or aborted row keeps its place and is fed pads. ``waste`` counts them.
    """

    name = "static"

    def __init__(
        self, model: PaddedModel, size: int = 8, *, clock: Clock | None = None, spans: SpanLog | None = None
    ) -> None:
        check_int("batch size", size, 1)
        self.model = model
        self.size = size
        self.waste = Waste()
        self._clock = clock or WallClock()
        self._spans = spans
        self._waiting: OrderedDict[str, tuple[RequestState, float]] = OrderedDict()  # and since when
        self._batch: list[RequestState] = []
        self._cache: Any = None  # of the batch, opaque here; None before it has run

    @property
    def has_work(self) -> bool:
        """Whether a request is running or waiting."""
        return bool(self._waiting) or any(_live(state) for state in self._batch)

    def add_request(self, request: Request) -> None:
        """Put a request at the end of the queue. Raises ``InvalidRequestError``."""
        config = self.model.config
        request.check_against(vocab_size=config.vocab_size, context=config.context)
        if request.request_id in self._waiting or self._running(request.request_id):
            raise InvalidRequestError("request_id", request.request_id, "not the id of a live request")
        self._waiting[request.request_id] = RequestState(request, eos_id=config.eos_id), self._clock.now()

    def step(self) -> list[StepOutput]:
        """Run the whole batch once; a token for each row that is still alive.

        If the model raises, each living row runs alone, and only those that raise alone fail; the
        others form the batch again, without them.
        """
        if not any(_live(state) for state in self._batch):
            self._batch, self._cache = self._filled(), None
        if not self._batch:
            return []
        try:
            tokens: Sequence[SampledToken | Exception] = self._run()
        except Exception:  # one bad request must not take the others with it
            self._batch, self._cache = [state for state in self._batch if _live(state)], None
            tokens = [self._alone(state) for state in self._batch]
        pairs = zip(self._batch, tokens, strict=True)
        outputs = [_output(state, token) for state, token in pairs if _live(state)]
        if self._cache is None:
            self._batch = [state for state in self._batch if _live(state)]
        return outputs

    def abort(self, request_id: str) -> None:
        """End a request, running or waiting. Its place in a batch stays taken until the batch ends.

        An unknown or finished id has no effect.
        """
        state = self._running(request_id)
        if state is None:
            state, _ = self._waiting.pop(request_id, (None, 0.0))
        if state is not None:
            state.finish(FinishReason.ABORT)

    def _running(self, request_id: str) -> RequestState | None:
        alive = (state for state in self._batch if _live(state))
        return next((state for state in alive if state.request.request_id == request_id), None)

    def _filled(self) -> list[RequestState]:
        """The next batch, taken from the queue. The first in line always fits."""
        batch: list[RequestState] = []
        prompt = answer = 0
        while self._waiting and len(batch) < self.size:
            state, since = next(iter(self._waiting.values()))
            request = state.request
            prompt = max(prompt, len(request.prompt_ids))
            answer = max(answer, request.sampling.max_tokens)
            if prompt + answer > self.model.config.context:
                break
            self._waiting.popitem(last=False)
            state.status = RequestStatus.RUNNING
            batch.append(state)
            self._record(Span(request.request_id, Stage.QUEUE, since, self._clock.now()))
        return batch

    def _run(self) -> list[SampledToken]:
        """One step of the batch: all that its rows hold if nothing has run yet, else one token each."""
        batch, first = self._batch, self._cache is None
        new = [self._next_ids(state, first=first) for state in batch]
        longest = max(map(len, new))
        pads = [longest - len(ids) for ids in new]
        cache = self.model.new_padded(pads) if first else self._cache
        begun = self._clock.now()
        logits = self.model.run_padded(
            [[PAD] * pad + [*ids] for pad, ids in zip(pads, new, strict=True)], cache
        )
        ran = self._clock.now()
        tokens = self.model.sample_batch(logits, batch)
        sampled = self._clock.now()
        self._cache = cache
        for state, ids in zip(batch, new, strict=True):
            self._count(state, len(ids), longest, first=first)
            if _live(state):
                name, held = state.request.request_id, state.length - len(ids)
                stage = Stage.PREFILL if first else Stage.DECODE
                self._record(Span(name, stage, begun, ran, new_tokens=len(ids), cached_tokens=held))
                self._record(Span(name, Stage.SAMPLE, ran, sampled))
        return tokens

    def _next_ids(self, state: RequestState, *, first: bool) -> Sequence[int]:
        if first:
            return state.all_ids
        return state.output_ids[-1:] if _live(state) else (PAD,)

    def _count(self, state: RequestState, new: int, longest: int, *, first: bool) -> None:
        if first:
            self.waste.prompts += new
            self.waste.padding += longest - new
        elif _live(state):
            self.waste.decodes += 1
        else:
            self.waste.finished += 1

    def _alone(self, state: RequestState) -> SampledToken | Exception:
        """The next token of one row, by itself and without a cache, or what goes wrong with it."""
        try:
            return self.model.sample(self.model.next_logits(state.all_ids), state)
        except Exception as error:
            return error

    def _record(self, span: Span) -> None:
        if self._spans is not None:
            self._spans.record(span)


def _live(state: RequestState) -> bool:
    return state.status is not RequestStatus.FINISHED


def _output(state: RequestState, token: SampledToken | Exception) -> StepOutput:
    request_id = state.request.request_id
    if isinstance(token, Exception):
        state.finish(FinishReason.ERROR)
        return StepOutput(request_id, (), FinishReason.ERROR, f"{type(token).__name__}: {token}")
    return StepOutput(request_id, (token,), state.append(token.token_id))
