"""Fit a step cost to what a live run took, and say how wrong it is on steps it has not seen."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np
from scipy.optimize import nnls

from servelib.errors import InvalidRequestError
from servelib.sim.cost import StepCost, attention_pairs
from servelib.spans import Span, Stage

HELD_OUT_EVERY = 4  # each fourth request is kept for the test
MINIMUM_REQUESTS = 8


@dataclass(frozen=True, slots=True)
class Sample:
    """One step of a live run: what it held, and how long it took.

    ``request_id`` is of the request that joined first, and ``new_tokens`` and ``cached_tokens`` are
    its; ``others`` are those of the rest of the batch.
    """

    request_id: str
    new_tokens: int
    cached_tokens: int
    seconds: float
    others: tuple[tuple[int, int], ...] = ()

    @property
    def sequences(self) -> tuple[tuple[int, int], ...]:
        """(new tokens, cached tokens) of every sequence in the step."""
        return ((self.new_tokens, self.cached_tokens), *self.others)


@dataclass(frozen=True, slots=True)
class Fit:
    """A fitted cost and its errors on held-out steps, as fractions of the measured time.

    ``total_error`` is signed: predicted over measured time of all held-out steps together, minus 1.
    ``batch_error`` is the median error of those steps that held more than one sequence; None without.
    """

    cost: StepCost
    samples: int
    held_out: int
    median_error: float
    p90_error: float
    total_error: float
    batch_error: float | None = None


def samples_from(spans: Iterable[Span], *, prefix: str = "") -> list[Sample]:
    """Steps from spans in time order: prefills and decodes, together with the sampling that follows them.

    Spans of the model that begin and end together are one batch. A static engine's say nothing of its
    pads, so its steps are no samples. ``prefix`` keeps the requests of several runs apart.
    """
    steps: dict[tuple[float, float], list[Span]] = {}
    running: dict[str, tuple[float, float]] = {}  # request id -> its step
    samples = []
    for span in spans:
        if span.stage.on_accelerator:
            step = running[span.request_id] = span.start, span.end
            steps.setdefault(step, []).append(span)
        elif span.stage is Stage.SAMPLE and (rows := steps.pop(running.get(span.request_id, _NONE), None)):
            held = [(row.new_tokens, row.cached_tokens) for row in rows]
            name, took = prefix + rows[0].request_id, span.end - rows[0].start
            samples.append(Sample(name, *held[0], took, tuple(held[1:])))
    return samples


_NONE = (-1.0, -1.0)


def fit(samples: Sequence[Sample], *, provenance: str = "") -> Fit:
    """Least squares on relative errors, no coefficient below 0; every fourth request is held out.

    Whole requests are held out, since two steps of one request are nearly the same step; a batch goes
    with the request in it that joined first. Raises
    ``InvalidRequestError`` from fewer than 8 requests.
    """
    held = _held_out(samples)
    seconds = np.array([sample.seconds for sample in samples])  # [n]
    work = np.array([_work(sample) for sample in samples])  # [n, 4]
    relative = work / seconds[:, None]  # so that a short step weighs as much as a long one
    scale = relative[~held].max(axis=0)
    scale[scale == 0] = 1.0  # a term that no sample has: its coefficient comes out as 0
    coefficients = nnls(relative[~held] / scale, np.ones(int((~held).sum())))[0] / scale
    predicted = work[held] @ coefficients
    errors = np.abs(predicted / seconds[held] - 1)
    batched = errors[np.array([bool(sample.others) for sample in samples])[held]]
    overhead, per_token, per_pair, per_cached = coefficients.tolist()
    return Fit(
        cost=StepCost(overhead, per_token, per_pair, per_cached, provenance),
        samples=len(samples),
        held_out=int(held.sum()),
        median_error=float(np.median(errors)),
        p90_error=float(np.quantile(errors, 0.9)),
        total_error=float(predicted.sum() / seconds[held].sum() - 1),
        batch_error=float(np.median(batched)) if len(batched) else None,
    )


def hold_out(samples: Sequence[Sample]) -> tuple[list[Sample], list[Sample]]:
    """The samples to fit to, and those to test on, split as ``fit`` does. Raises as ``fit``."""
    held = _held_out(samples).tolist()
    pairs = list(zip(samples, held, strict=True))
    return [sample for sample, test in pairs if not test], [sample for sample, test in pairs if test]


def _held_out(samples: Sequence[Sample]) -> np.ndarray:
    """Which samples are of every fourth request, [n]."""
    order = {name: i for i, name in enumerate(dict.fromkeys(sample.request_id for sample in samples))}
    if len(order) < MINIMUM_REQUESTS:
        raise InvalidRequestError("samples", f"{len(order)} requests", f"of at least {MINIMUM_REQUESTS}")
    return np.array([order[sample.request_id] % HELD_OUT_EVERY == HELD_OUT_EVERY - 1 for sample in samples])


def _work(sample: Sample) -> tuple[float, float, float, float]:
    """The four units of work of all sequences together, in the order of a ``StepCost``."""
    held = sample.sequences
    new, cached = sum(new for new, _ in held), sum(cached for _, cached in held)
    return 1.0, new, sum(attention_pairs(*each) for each in held), cached
