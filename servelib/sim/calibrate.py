"""Calibrate a roofline to a live run: what a launch costs, and which shares of the peaks are reached."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
from scipy.optimize import least_squares

from servelib.sim.fit import Sample, hold_out
from servelib.sim.roofline import RooflineCost


@dataclass(frozen=True, slots=True)
class Calibrated:
    """A roofline that was fitted, and its errors on held-out steps as fractions of the measured time.

    ``worst`` is the held-out step that it predicts worst, as (sample, predicted seconds).
    """

    cost: RooflineCost
    samples: int
    held_out: int
    median_error: float
    p90_error: float
    total_error: float
    worst: tuple[Sample, float]


def calibrate(
    start: RooflineCost, samples: Sequence[Sample], *, provenance: str = "calibrated"
) -> Calibrated:
    """Fit the shares of both peaks that are reached, from ``start``'s ceilings, to three of four requests.

    ``start.overhead`` is kept where it was measured (above 0) and else fitted too. One sequence at a
    time cannot tell a launch from reading the weights, since both come once a step: measure it.

    Errors are relative, so that a short step weighs as much as a long one, and their sizes are summed
    softly, so that the few steps that something else interrupted do not pull. Raises
    ``InvalidRequestError`` from fewer than 8 requests.
    """
    kept, held = hold_out(samples)
    # Equal steps are predicted alike: each kind once, at its median, weighted by how many there were.
    kinds: dict[tuple[tuple[int, int], ...], list[float]] = {}
    for sample in kept:
        kinds.setdefault(sample.sequences, []).append(sample.seconds)
    seconds = np.array([float(np.median(found)) for found in kinds.values()])
    weight = np.sqrt([len(found) for found in kinds.values()])

    def cost(logs: np.ndarray) -> RooflineCost:
        compute, memory, *fitted = np.exp(logs).tolist()
        overhead = fitted[0] if fitted else start.overhead
        return replace(start, overhead=overhead, compute=compute, memory=memory, calibrated=provenance)

    def off(logs: np.ndarray) -> np.ndarray:
        now = cost(logs)
        return np.asarray(weight * (np.array([now.seconds_of(kind) for kind in kinds]) / seconds - 1))

    # A share of a peak is at most all of it: what is left of a step's time is overhead.
    first, low, high = [0.9, 0.9], [1e-3, 1e-3], [1.0, 1.0]
    if start.overhead == 0:
        first, low, high = [*first, float(seconds.min()) / 2], [*low, 1e-9], [*high, float(seconds.max())]
    fitted = least_squares(off, np.log(first), bounds=(np.log(low), np.log(high)), loss="soft_l1")
    found = cost(fitted.x)
    predicted = np.array([found.seconds_of(s.sequences) for s in held])
    measured = np.array([sample.seconds for sample in held])
    errors = np.abs(predicted / measured - 1)
    most = int(errors.argmax())
    return Calibrated(
        cost=found,
        samples=len(samples),
        held_out=len(held),
        median_error=float(np.median(errors)),
        p90_error=float(np.quantile(errors, 0.9)),
        total_error=float(predicted.sum() / measured.sum() - 1),
        worst=(held[most], float(predicted[most])),
    )
