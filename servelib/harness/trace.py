"""Traces: who asks for what, and when; drawn whole before the run.

Arrivals, lengths and prompts come from independent random streams, each named by a label, so a
change in one leaves the others as they were: a faster trace has the same prompts. Only the standard
library is used, and each law is written out, so every machine draws the same trace.
"""

from __future__ import annotations

import hashlib
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Protocol

from servelib.errors import InvalidRequestError, check_int
from servelib.harness.arrivals import Arrivals, AtOnce, Poisson
from servelib.harness.lengths import Lengths, Uniform

__all__ = [
    "PRINTABLE_ASCII",
    "REFERENCE_WORKLOAD",
    "Arrivals",
    "Lengths",
    "Poisson",
    "SharedPrefix",
    "Trace",
    "TraceRequest",
    "TraceSource",
    "Uniform",
    "Workload",
    "make_trace",
]

REFERENCE_PROMPT, REFERENCE_OUTPUT = Uniform(32, 96), Uniform(16, 48)
PRINTABLE_ASCII = range(32, 127)
"""Token ids of a drawn prompt: one byte, one token, one character, so a prompt is also exact text."""


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


@dataclass(frozen=True, slots=True)
class SharedPrefix:
    """``tokens`` in front of every prompt, the same in all of a group; the group is drawn evenly.

    They come on top of the drawn prompt, which stays as it is without them.
    """

    tokens: int
    groups: int = 1

    def __post_init__(self) -> None:
        check_int("prefix tokens", self.tokens, 1)
        check_int("prefix groups", self.groups, 1)

    @property
    def label(self) -> str:
        """How a conditions line names it."""
        return f"{self.tokens} shared" + (f" in {self.groups} groups" if self.groups > 1 else "")


class TraceSource(Protocol):
    """Where a sweep takes its traces from: a drawn ``Workload``, or one fixed trace."""

    def trace(self, rate: float, run: int = 0) -> Trace:
        """The trace of one run."""
        ...

    @property
    def warmup(self) -> Callable[[int], Trace]:
        """Makes the requests that come before, not counted."""
        ...


Body = tuple[str, tuple[int, ...], int]  # request id, prompt ids, output tokens


def make_trace(
    arrivals: Arrivals,
    n: int,
    *,
    prompt: Lengths = REFERENCE_PROMPT,
    output: Lengths = REFERENCE_OUTPUT,
    seed: int = 7,
    token_ids: Sequence[int] = PRINTABLE_ASCII,
    shared_prefix: SharedPrefix | None = None,
) -> Trace:
    """Draw ``n`` requests. Raises ``InvalidRequestError`` on ``n`` below 1 or a seed not an integer."""
    bodies = _bodies(n, prompt, output, seed, token_ids, shared_prefix)
    return _at(arrivals, bodies, _prompt_label(prompt, shared_prefix), output.label, seed)


@dataclass(frozen=True)
class Workload:
    """What is asked for, whatever the rate: lengths, how many requests, the seed, the arrival law.

    Run k is drawn with seed + k, so repeated runs spread over traffic, not only over noise.
    ``arrivals`` makes the law from a rate. Raises ``InvalidRequestError`` on a bad value.
    """

    prompt: Lengths = REFERENCE_PROMPT
    output: Lengths = REFERENCE_OUTPUT
    requests: int = 24
    seed: int = 7
    arrivals: Callable[[float], Arrivals] = Poisson
    shared_prefix: SharedPrefix | None = None
    _drawn: dict[int, list[Body]] = field(default_factory=dict, init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        check_int("requests", self.requests, 1)
        _check_seed(self.seed)

    def trace(self, rate: float, run: int = 0) -> Trace:
        """The trace of one run at ``rate`` requests/s. Prompts are drawn once and shared by rates."""
        check_int("run", run, 0)
        seed = self.seed + run
        if run not in self._drawn:
            self._drawn[run] = self._bodies(self.requests, seed)
        label = _prompt_label(self.prompt, self.shared_prefix)
        return _at(self.arrivals(rate), self._drawn[run], label, self.output.label, seed, rate)

    def warmup(self, n: int) -> Trace:
        """``n`` requests, all at time 0, with prompts and lengths that no run of this workload uses."""
        bodies = [(f"warmup-{name}", ids, out) for name, ids, out in self._bodies(n, self.seed, "warmup:")]
        label = _prompt_label(self.prompt, self.shared_prefix)
        return _at(AtOnce(), bodies, label, self.output.label, self.seed)

    def _bodies(self, n: int, seed: int, stream: str = "") -> list[Body]:
        return _bodies(n, self.prompt, self.output, seed, PRINTABLE_ASCII, self.shared_prefix, stream)


def draw_tokens(size: int, seed: int, label: str, token_ids: Sequence[int] = PRINTABLE_ASCII) -> list[int]:
    """``size`` token ids that depend on the seed and the label alone."""
    return stream_rng(seed, label).choices(token_ids, k=size)


def stream_rng(seed: int, label: str) -> random.Random:
    """The random stream called ``label``: independent of the others, the same in every process."""
    return random.Random(f"{seed}:{label}")


def _bodies(
    n: int,
    prompt: Lengths,
    output: Lengths,
    seed: int,
    token_ids: Sequence[int],
    shared: SharedPrefix | None = None,
    stream: str = "",
) -> list[Body]:
    check_int("requests", n, 1)
    _check_seed(seed)
    if not token_ids:
        raise InvalidRequestError("token_ids", token_ids, "at least one token id")
    prompt_lengths = prompt.draw(n, stream_rng(seed, f"{stream}lengths:prompt"))
    output_lengths = output.draw(n, stream_rng(seed, f"{stream}lengths:output"))
    rng = stream_rng(seed, f"{stream}prompts")
    own = [rng.choices(token_ids, k=size) for size in prompt_lengths]
    if shared is not None:
        rng = stream_rng(seed, f"{stream}groups")
        heads = [
            draw_tokens(shared.tokens, seed, f"{stream}prefix:{g}", token_ids) for g in range(shared.groups)
        ]
        own = [heads[int(rng.random() * shared.groups)] + ids for ids in own]
    return [
        (f"{seed}-{i}", tuple(ids), out) for i, (ids, out) in enumerate(zip(own, output_lengths, strict=True))
    ]


def _at(
    arrivals: Arrivals, bodies: list[Body], prompt: str, output: str, seed: int, rate: float | None = None
) -> Trace:
    times = arrivals.times(len(bodies), stream_rng(seed, "arrivals"))
    requests = tuple(
        TraceRequest(name, at, ids, out) for at, (name, ids, out) in zip(times, bodies, strict=True)
    )
    rate = getattr(arrivals, "rate", None) if rate is None else rate
    return Trace(requests, arrivals.label, prompt, output, seed, rate)


def _prompt_label(prompt: Lengths, shared: SharedPrefix | None) -> str:
    return prompt.label if shared is None else f"{shared.label} + {prompt.label}"


def _check_seed(seed: object) -> None:
    if not isinstance(seed, int) or isinstance(seed, bool):
        raise InvalidRequestError("seed", seed, "an integer (0 is one)")


REFERENCE_WORKLOAD = Workload()
"""The workload of every table in the course: Poisson, prompts 32-96, outputs 16-48, seed 7."""
