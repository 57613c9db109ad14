"""The naive engine: one request at a time, in arrival order. Wrong on purpose, and the oracle.

Chapter 1 measures it; every later engine must give exactly its tokens.
"""

from __future__ import annotations

from collections import deque
from typing import Any

from servelib.clock import Clock, WallClock
from servelib.engine.protocol import Model
from servelib.errors import InvalidRequestError
from servelib.request import FinishReason, Request, RequestState, RequestStatus, StepOutput
from servelib.spans import Span, SpanLog, Stage, timed


class NaiveEngine:
    """Serves strictly in arrival order; each ``step`` runs the model once and returns one token.

    Without a cache it runs the whole sequence again for each token. With one (``use_cache=True``)
    it keeps keys and values and runs the new token alone. Both give identical tokens.
    """

    def __init__(
        self,
        model: Model,
        *,
        use_cache: bool = False,
        clock: Clock | None = None,
        spans: SpanLog | None = None,
    ) -> None:
        self.name = "cached" if use_cache else "naive"
        self.model = model
        self._use_cache = use_cache
        self._clock = clock or WallClock()
        self._spans = spans
        self._waiting: deque[RequestState] = deque()
        self._current: RequestState | None = None
        self._cache: Any = None  # of the current request, opaque here
        self._arrived: dict[str, float] = {}  # live request ids, and when each joined the queue

    @property
    def has_work(self) -> bool:
        """Whether a request is running or waiting."""
        return self._current is not None or bool(self._waiting)

    def add_request(self, request: Request) -> None:
        """Put a request at the end of the queue. Raises ``InvalidRequestError``."""
        config = self.model.config
        request.check_against(vocab_size=config.vocab_size, context=config.context)
        if request.request_id in self._arrived:
            raise InvalidRequestError("request_id", request.request_id, "not the id of a live request")
        self._arrived[request.request_id] = self._clock.now()
        self._waiting.append(RequestState(request, eos_id=config.eos_id))

    def step(self) -> list[StepOutput]:
        """Run the model once for the request at the head of the line, and return its next token.

        One token a call, so that between two calls the caller can stream it, queue an arrival or
        abort. If the model raises, that request alone ends, with ``FinishReason.ERROR``.
        """
        state = self._current or self._admit()
        if state is None:
            return []
        request_id = state.request.request_id
        # The first wrong choice: without a cache, all of the sequence is new at every step.
        first = not state.output_ids
        ids = state.all_ids if first or not self._use_cache else state.output_ids[-1:]
        cached = len(state.request.prompt_ids) + len(state.output_ids) - len(ids)
        stage = Stage.PREFILL if first else Stage.DECODE
        try:
            if first and self._use_cache:
                self._cache = self.model.new_cache()
            with timed(
                self._spans, self._clock, request_id, stage, new_tokens=len(ids), cached_tokens=cached
            ):
                logits = self.model.next_logits(ids, self._cache)
            with timed(self._spans, self._clock, request_id, Stage.SAMPLE):
                token = self.model.sample(logits, state)
        except Exception as error:  # one bad request must not take the others with it
            state.finish(FinishReason.ERROR)
            self._release(state)
            return [StepOutput(request_id, (), FinishReason.ERROR, f"{type(error).__name__}: {error}")]
        reason = state.append(token.token_id)
        if reason is not None:
            self._release(state)
        return [StepOutput(request_id, (token,), reason)]

    def abort(self, request_id: str) -> None:
        """Drop a request, running or waiting. An unknown or finished id has no effect."""
        if request_id not in self._arrived:
            return
        state = self._current
        if state is None or state.request.request_id != request_id:
            state = next(state for state in self._waiting if state.request.request_id == request_id)
            self._waiting.remove(state)
        state.finish(FinishReason.ABORT)
        self._release(state)

    def _admit(self) -> RequestState | None:
        """Take the next request. The second wrong choice: only when the one before has ended."""
        if not self._waiting:
            return None
        state = self._current = self._waiting.popleft()
        state.status = RequestStatus.RUNNING
        if self._spans is not None:
            request_id = state.request.request_id
            waited_from = self._arrived[request_id]
            self._spans.record(Span(request_id, Stage.QUEUE, waited_from, self._clock.now()))
        return state

    def _release(self, state: RequestState) -> None:
        """Give back all that a finished request holds."""
        del self._arrived[state.request.request_id]
        if state is self._current:
            self._current = None
            self._cache = None
