"""Spans: the stages of a request's life, each with a start and an end.

A stage is recorded by whoever runs it, on the clock it was given; a ``SpanLog`` collects them. An
engine or server without a log records nothing and pays nothing.
"""

from __future__ import annotations

import enum
import threading
from collections.abc import Iterable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass

from servelib.clock import Clock


class Stage(enum.Enum):
    """The nine stages, in the order in which a request first meets them."""

    RECEIVE = "receive"  # read and parse the HTTP request
    TEMPLATE = "template"  # messages to one prompt
    TOKENIZE = "tokenize"  # prompt to token ids
    QUEUE = "queue"  # wait for the engine
    PREFILL = "prefill"  # run the model over the prompt; gives the first logits
    SAMPLE = "sample"  # logits to a token
    DECODE = "decode"  # run the model for one more token
    DETOKENIZE = "detokenize"  # token to text, never half a character
    STREAM = "stream"  # write a fragment to the socket

    @property
    def on_accelerator(self) -> bool:
        """Whether this stage runs the model."""
        return self in (Stage.PREFILL, Stage.DECODE)


@dataclass(frozen=True, slots=True)
class Span:
    """One visit of one request to one stage, in seconds on the recorder's clock.

    ``new_tokens`` and ``cached_tokens`` say what a prefill or decode step held; else both are 0.
    """

    request_id: str
    stage: Stage
    start: float
    end: float
    new_tokens: int = 0
    cached_tokens: int = 0

    @property
    def seconds(self) -> float:
        """How long it took."""
        return self.end - self.start


class SpanLog:
    """Collects spans from any thread, in the order in which they ended.

    ``only`` these stages, if given: the others are not even timed, which in virtual time is most of
    what a log costs.
    """

    def __init__(self, only: Iterable[Stage] | None = None) -> None:
        self._only = None if only is None else frozenset(only)
        self._spans: list[Span] = []
        self._lock = threading.Lock()

    def record(self, span: Span) -> None:
        """Keep one span, if its stage is wanted."""
        if self.wants(span.stage):
            with self._lock:
                self._spans.append(span)

    def wants(self, stage: Stage) -> bool:
        """Whether spans of this stage are kept."""
        return self._only is None or stage in self._only

    def spans(self, request_id: str | None = None) -> list[Span]:
        """Every span so far, or those of one request, by start time."""
        with self._lock:
            kept = [s for s in self._spans if request_id in (None, s.request_id)]
        return sorted(kept, key=lambda span: (span.start, span.end))

    def clear(self) -> None:
        """Forget everything."""
        with self._lock:
            self._spans.clear()


def timed(
    log: SpanLog | None,
    clock: Clock,
    request_id: str,
    stage: Stage,
    *,
    new_tokens: int = 0,
    cached_tokens: int = 0,
) -> AbstractContextManager[None]:
    """Record the body as one span, also when it raises. Without a log, just run it."""
    if log is None or not log.wants(stage):
        return _NOTHING
    return _record(log, clock, request_id, stage, new_tokens, cached_tokens)


_NOTHING = nullcontext()  # shared: it keeps no state, and virtual time makes a million of these calls


@contextmanager
def _record(
    log: SpanLog, clock: Clock, request_id: str, stage: Stage, new_tokens: int, cached_tokens: int
) -> Iterator[None]:
    start = clock.now()
    try:
        yield
    finally:
        log.record(Span(request_id, stage, start, clock.now(), new_tokens, cached_tokens))
