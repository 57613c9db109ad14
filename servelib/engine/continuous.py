"""The continuous engine: schedule, run, sample, commit. Every later chapter passes it a new part.

What may be scheduled is the scheduler's, where keys and values live the cache's, how tokens are chosen
the sampler's: none of them is known here, and none needs a change here.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from servelib.clock import Clock, WallClock
from servelib.engine.batch import Batch
from servelib.engine.protocol import BatchModel
from servelib.engine.scheduler import Scheduler
from servelib.request import Request, RequestState, SampledToken, StepOutput
from servelib.spans import Span, SpanLog, Stage

Sampler = Callable[[Any, Batch], Sequence[Sequence[SampledToken]]]
"""Logits of a step and its batch -> the tokens of each row. It changes no state: a row may run again."""


class ContinuousEngine:
    """Requests join and leave at every step; each step runs one flat batch.

    ``cache`` is the memory that ``model.run`` writes to, ``scheduler`` holds the same memory's places.
    ``sampler`` chooses one token for each sampled row by default.
    """

    name = "continuous"

    def __init__(
        self,
        model: BatchModel,
        cache: Any,
        scheduler: Scheduler,
        *,
        sampler: Sampler | None = None,
        clock: Clock | None = None,
        spans: SpanLog | None = None,
    ) -> None:
        self.model = model
        self.scheduler = scheduler
        self._cache = cache
        self._sampler = sampler or one_token_each(model)
        self._clock = clock or WallClock()
        self._spans = spans
        self._queued: dict[str, float] = {}  # requests that have not run yet, and since when they wait

    @property
    def has_work(self) -> bool:
        """Whether a request is running or waiting."""
        return bool(self.scheduler.running or self.scheduler.waiting)

    def add_request(self, request: Request) -> None:
        """Put a request at the end of the queue. Raises ``InvalidRequestError``."""
        config = self.model.config
        request.check_against(vocab_size=config.vocab_size, context=config.context)
        self.scheduler.add(RequestState(request, eos_id=config.eos_id))
        self._queued[request.request_id] = self._clock.now()

    def step(self) -> list[StepOutput]:
        """Run one batch; at most one output for each request in it.

        If the model raises, the rows run again one by one, and only those that raise alone fail.
        """
        batch = self.scheduler.schedule()
        if not batch.rows:
            return []
        begun = self._clock.now()
        for row in batch.rows:
            queued = self._queued.pop(row.request_id, None)
            if queued is not None and self._spans is not None:
                self._spans.record(Span(row.request_id, Stage.QUEUE, queued, begun))
        return self.scheduler.commit(batch, self._results(batch))

    def abort(self, request_id: str) -> None:
        """Drop a request, running or waiting. An unknown or finished id has no effect."""
        self._queued.pop(request_id, None)
        self.scheduler.abort(request_id)

    def _results(self, batch: Batch) -> Sequence[Sequence[SampledToken] | Exception]:
        try:
            return self._run(batch)
        except Exception as error:  # one bad request must not take the others with it
            if len(batch.rows) == 1:
                return [error]
            return [self._results(Batch((row,)))[0] for row in batch.rows]

    def _run(self, batch: Batch) -> Sequence[Sequence[SampledToken]]:
        begun = self._clock.now()
        logits = self.model.run(batch, self._cache)
        ran = self._clock.now()
        tokens = self._sampler(logits, batch)
        if self._spans is not None:
            sampled = self._clock.now()
            for row in batch.rows:
                size = {"new_tokens": len(row.ids), "cached_tokens": row.start}
                self._spans.record(Span(row.request_id, row.stage, begun, ran, **size))
                if row.samples:
                    self._spans.record(Span(row.request_id, Stage.SAMPLE, ran, sampled))
        return tokens


def one_token_each(model: BatchModel) -> Sampler:
    """Plain decoding: one token for each row that samples, none for the others."""

    def sample(logits: Any, batch: Batch) -> Sequence[Sequence[SampledToken]]:
        states = [row.state for row in batch.rows if row.samples]
        chosen = iter(model.sample_batch(logits, states) if states else ())
        return [(next(chosen),) if row.samples else () for row in batch.rows]

    return sample
