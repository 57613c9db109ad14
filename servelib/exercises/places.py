"""Steps to place on the roofline: which resource each waits for, and the slips in its intensity."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from numbers import Real
from typing import Any

from servelib.exercises.check import Mistake
from servelib.model.config import ModelConfig
from servelib.sim.count import count
from servelib.sim.shape import bytes_per_number


@dataclass(frozen=True, slots=True)
class Place:
    """A step to place on the roofline: each of ``batch`` sequences runs ``new`` behind ``cached``."""

    batch: int
    new: int
    cached: int

    @property
    def words(self) -> str:
        """The step in words."""
        many = "1 sequence" if self.batch == 1 else f"{self.batch} sequences"
        if self.new > 1:
            return f"{many}, prefill of {self.new:,} tokens"
        return f"{many}, one token each behind {self.cached:,}"


PLACES: Mapping[str, Place] = {"A": Place(1, 1, 1000), "B": Place(1, 512, 0), "C": Place(512, 1, 512)}
"""The three steps of the exercise."""


def place_mistakes(answer: Any, config: ModelConfig, place: Place, balance: float) -> None:
    """Raise ``Mistake`` unless ``answer`` is the bound and, within 10 %, the intensity of ``place``.

    Each product's input and output may be counted as bytes or left out. ``balance`` in operations a byte.
    """
    tried = f"your place for {place.words}"
    pair = '("memory" or "compute", operations a byte)'
    if not isinstance(answer, tuple | list) or len(answer) != 2 or None in answer:
        raise Mistake(tried, pair, repr(answer), "Put your bound and your number in place of it.")
    bound, intensity = answer
    if isinstance(intensity, bool) or not isinstance(intensity, Real) or not math.isfinite(intensity):
        raise Mistake(tried, pair, repr(answer), "The second of the pair is a number: operations a byte.")
    said = bound.strip().lower() if isinstance(bound, str) else bound
    if said not in ("memory", "compute"):
        raise Mistake(tried, pair, repr(answer), 'The first of the pair is "memory" or "compute".')
    step = count(config, [(place.new, place.cached)] * place.batch)
    kinds = step.bytes_by_kind()
    plain = step.operations / (step.bytes - kinds["activations"])  # weights, keys and values only
    low, high = 0.9 * step.intensity, 1.1 * plain
    sums = (
        f"{step.operations:.3g} operations; weights {kinds['weights']:.3g} bytes, keys and values "
        f"{kinds['kv_read'] + kinds['kv_written']:.3g} bytes"
    )
    if not low <= float(intensity) <= high:
        expected = f"operations a byte: {sums}"
        hint = _intensity_slip(float(intensity), config, place, low, high)
        raise Mistake(tried, expected, f"{intensity:.4g}", hint)
    if said not in {"compute" if x > balance else "memory" for x in (step.intensity, plain)}:
        side = "above" if step.intensity > balance else "below"
        hint = (
            f"{step.intensity:.3g} operations a byte is {side} the machine's balance of {balance:.3g}. Below "
            "it the bytes take longer, above it the operations."
        )
        raise Mistake(tried, f"{sums}: which takes longer?", f'"{said}"', hint)


def _intensity_slip(intensity: float, config: ModelConfig, place: Place, low: float, high: float) -> str:
    """The slip that gives ``intensity``, in words."""
    step = count(config, [(place.new, place.cached)] * place.batch)
    kinds, many = step.bytes_by_kind(), place.batch * place.new
    weights, kv = kinds["weights"], kinds["kv_read"] + kinds["kv_written"]
    operations, size = step.operations, bytes_per_number(config)
    slips = [
        (
            operations / (many * weights + kv),
            f"The weights are read once a step, not once for each of the {many} tokens: that is what a "
            "batch is for.",
        ),
        (
            operations / weights,
            f"Keys and values are missing: {place.batch} x {place.cached:,} cached tokens are read too.",
        ),
        (
            operations / (weights + kv / place.batch),
            "The weights are shared by the batch, keys and values are not: each sequence reads its own.",
        ),
        (
            size * operations / (weights + kv),
            f"Those are operations for each number. A number of {config.dtype} is {size} bytes.",
        ),
        (
            operations / 2 / (weights + kv),
            f"Half of it. A multiply-add is two operations, and a number of {config.dtype} is {size} bytes.",
        ),
        (
            operations / place.batch / (weights + kv / place.batch),
            f"Those are the operations of one sequence. All {place.batch} run in the step.",
        ),
        ((weights + kv) / operations, "Turn it over: operations divided by bytes."),
    ]
    for value, why in slips:
        if not low <= value <= high and math.isclose(intensity, value, rel_tol=0.04):
            return why
    return (
        "Divide the operations of all sequences by the bytes of the step: all weights once, and the cached "
        "keys and values of every sequence."
    )
