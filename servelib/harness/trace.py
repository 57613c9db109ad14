"""Traces: who asks for what, and when; drawn whole before the run.

Arrivals, lengths and prompts come from independent random streams, each named by a label, so a
change in one leaves the others as they were: a faster trace has the same prompts. Only the standard
library is used, and each law is written out, so every machine draws the same trace.
"""

from __future__ import annotations

import hashlib
import math
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Protocol

from servelib.errors import InvalidRequestError, check_float, check_int

PRINTABLE_ASCII = range(32, 127)
"""Token ids of a drawn prompt: one byte, one token, one character, so a prompt is also exact text."""


class Arrivals(Protocol):
    """When requests come. ``label`` is how a conditions line names the law."""

    @property
    def label(self) -> str:
        """The law's name in tables and conditions."""
        ...

    def times(self, n: int, rng: random.Random) -> list[float]:
        """``n`` times in seconds from the start of the run, never falling."""
        ...


class Lengths(Protocol):
    """How long prompts or outputs are. ``label`` is how a conditions line names the law."""

    @property
    def label(self) -> str:
        """The law's name in tables and conditions."""
        ...

    def draw(self, n: int, rng: random.Random) -> list[int]:
        """``n`` lengths in tokens, each at least 1."""
        ...


@dataclass(frozen=True, slots=True)
class Poisson:
    """Independent arrivals at ``rate`` requests/s: exponential gaps, the first one included.

    The same unit gaps are divided by the rate: another rate stretches the schedule, nothing else.
    Raises ``InvalidRequestError`` on a rate that is not finite and above 0.
    """

    rate: float

    def __post_init__(self) -> None:
        check_float("rate", self.rate, 0.0, low_open=True)

    @property
    def label(self) -> str:
        """The law's name in tables and conditions."""
        return "poisson"

    def times(self, n: int, rng: random.Random) -> list[float]:
        """``n`` arrival times in seconds."""
        times, unit_time = [], 0.0
        for _ in range(n):
            unit_time -= math.log(1.0 - rng.random())  # random() is below 1, so the log is finite
            times.append(unit_time / self.rate)
        return times


@dataclass(frozen=True, slots=True)
class Uniform:
    """Every length from ``low`` to ``high``, both included, equally likely.

    Raises ``InvalidRequestError`` unless 1 <= low <= high.
    """

    low: int
    high: int

    def __post_init__(self) -> None:
        check_int("length", self.low, 1)
        check_int("length", self.high, self.low)

    @property
    def label(self) -> str:
        """Written ``low-high``."""
        return f"{self.low}-{self.high}"

    def draw(self, n: int, rng: random.Random) -> list[int]:
        """``n`` lengths in tokens."""
        return [rng.randint(self.low, self.high) for _ in range(n)]


@dataclass(frozen=True, slots=True)
class TraceRequest:
    """One request of a trace. ``scheduled`` is in seconds from the start of the run."""

    request_id: str
    scheduled: float
    prompt_ids: tuple[int, ...]
    output_tokens: int


@dataclass(frozen=True)
class Trace:
    """A whole schedule, and the names of the laws that drew it. ``rate`` None: it has no one rate."""

    requests: tuple[TraceRequest, ...]
    arrivals: str
    prompt: str
    output: str
    seed: int
    rate: float | None = None

    @cached_property
    def hash(self) -> str:
        """Twelve hex digits that depend on times, prompts and lengths alone; the same in any process."""
        digest = hashlib.sha256()
        for request in self.requests:
            content = (request.request_id, request.scheduled, request.prompt_ids, request.output_tokens)
            digest.update(repr(content).encode())
        return digest.hexdigest()[:12]


Body = tuple[str, tuple[int, ...], int]  # request id, prompt ids, output tokens


def make_trace(
    arrivals: Arrivals,
    n: int,
    *,
    prompt: Lengths = Uniform(32, 96),
    output: Lengths = Uniform(16, 48),
    seed: int = 7,
    token_ids: Sequence[int] = PRINTABLE_ASCII,
) -> Trace:
    """Draw ``n`` requests. Raises ``InvalidRequestError`` on ``n`` below 1 or a seed not an integer."""
    return _at(arrivals, _bodies(n, prompt, output, seed, token_ids), prompt, output, seed)


@dataclass(frozen=True)
class Workload:
    """What is asked for, whatever the rate: lengths, how many requests, the seed, the arrival law.

    Run k is drawn with seed + k, so repeated runs spread over traffic, not only over noise.
    ``arrivals`` makes the law from a rate. Raises ``InvalidRequestError`` on a bad value.
    """

    prompt: Lengths = Uniform(32, 96)
    output: Lengths = Uniform(16, 48)
    requests: int = 24
    seed: int = 7
    arrivals: Callable[[float], Arrivals] = Poisson
    _drawn: dict[int, list[Body]] = field(default_factory=dict, init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        check_int("requests", self.requests, 1)
        _check_seed(self.seed)

    def trace(self, rate: float, run: int = 0) -> Trace:
        """The trace of one run at ``rate`` requests/s. Prompts are drawn once and shared by rates."""
        check_int("run", run, 0)
        seed = self.seed + run
        if run not in self._drawn:
            self._drawn[run] = _bodies(self.requests, self.prompt, self.output, seed, PRINTABLE_ASCII)
        return _at(self.arrivals(rate), self._drawn[run], self.prompt, self.output, seed, rate)

    def warmup(self, n: int) -> Trace:
        """``n`` requests, all at time 0, with prompts and lengths that no run of this workload uses."""
        bodies = _bodies(n, self.prompt, self.output, self.seed, PRINTABLE_ASCII, stream="warmup:")
        requests = tuple(TraceRequest(f"warmup-{name}", 0.0, ids, out) for name, ids, out in bodies)
        return Trace(requests, "at once", self.prompt.label, self.output.label, self.seed)


def _bodies(
    n: int, prompt: Lengths, output: Lengths, seed: int, token_ids: Sequence[int], stream: str = ""
) -> list[Body]:
    check_int("requests", n, 1)
    _check_seed(seed)
    if not token_ids:
        raise InvalidRequestError("token_ids", token_ids, "at least one token id")
    prompt_lengths = prompt.draw(n, _rng(seed, f"{stream}lengths:prompt"))
    output_lengths = output.draw(n, _rng(seed, f"{stream}lengths:output"))
    rng = _rng(seed, f"{stream}prompts")
    return [
        (f"{seed}-{i}", tuple(rng.choices(token_ids, k=size)), out)
        for i, (size, out) in enumerate(zip(prompt_lengths, output_lengths, strict=True))
    ]


def _at(
    arrivals: Arrivals,
    bodies: list[Body],
    prompt: Lengths,
    output: Lengths,
    seed: int,
    rate: float | None = None,
) -> Trace:
    times = arrivals.times(len(bodies), _rng(seed, "arrivals"))
    requests = tuple(
        TraceRequest(name, at, ids, out) for at, (name, ids, out) in zip(times, bodies, strict=True)
    )
    rate = getattr(arrivals, "rate", None) if rate is None else rate
    return Trace(requests, arrivals.label, prompt.label, output.label, seed, rate)


def _rng(seed: int, label: str) -> random.Random:
    return random.Random(f"{seed}:{label}")  # seeding from text is the same in every process


def _check_seed(seed: object) -> None:
    if not isinstance(seed, int) or isinstance(seed, bool):
        raise InvalidRequestError("seed", seed, "an integer (0 is one)")


REFERENCE_WORKLOAD = Workload()
"""The workload of every table in the course: Poisson, prompts 32-96, outputs 16-48, seed 7."""
