"""What the harness keeps of a run: every request, every event, nothing summarised away."""

from __future__ import annotations

import enum
from dataclasses import dataclass, field

from servelib.harness.selfcheck import SelfCheck


class Outcome(enum.Enum):
    """How a request ended, seen from the caller. All but OK are failures and stay in the count."""

    OK = "ok"
    REFUSED = "refused"  # turned away at the door: invalid, or the queue was full
    TIMED_OUT = "timed_out"
    ABORTED = "aborted"  # the run was stopped, or the caller hung up
    TRUNCATED = "truncated"  # the stream ended without its end
    HTTP_ERROR = "http_error"
    STREAM_ERROR = "stream_error"  # an error inside the stream, or the engine failed on it
    SHORT = "short"  # fewer tokens than the trace asked for


@dataclass(slots=True)
class RequestRecord:
    """One request. Times are seconds since the start of the run, on the run's one clock.

    ``events`` holds (time, tokens) for each moment at which tokens arrived. ``sent`` is None for a
    request that was never handed over, ``outcome`` None for one still in flight. ``tokens_from`` says
    who counted the tokens (the engine; over HTTP ``usage``, a tokenizer, or the chunks), ``tokens_note``
    what about the count was assumed or does not add up.
    """

    request_id: str
    scheduled: float
    prompt_tokens: int
    requested_tokens: int
    sent: float | None = None
    events: list[tuple[float, int]] = field(default_factory=list)
    end: float | None = None
    outcome: Outcome | None = None
    error: str | None = None
    tokens_from: str = "engine"
    tokens_note: str | None = None

    @property
    def output_tokens(self) -> int:
        """Tokens received."""
        return sum(tokens for _, tokens in self.events)

    @property
    def ok(self) -> bool:
        """Whether the caller got all that was asked for."""
        return self.outcome is Outcome.OK


@dataclass(slots=True)
class RunRecord:
    """One run of one trace: its records in arrival order, and whether it was stopped early.

    ``duration`` is the time from the start of the run (trace time 0) to its last event. ``self_check``
    is what the run showed of the harness; None in virtual time. ``began`` is what the run's clock read
    at trace time 0, to lay records beside spans of the same clock.
    """

    seed: int
    trace_hash: str
    requests: list[RequestRecord]
    duration: float = 0.0
    interrupted: bool = False
    self_check: SelfCheck | None = None
    began: float = 0.0
