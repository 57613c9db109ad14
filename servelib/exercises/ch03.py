"""The checks of chapter 3: count a step of a model, place steps on the roofline, size the cache."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from numbers import Real
from typing import Any

from servelib.exercises.check import Check, Mistake, Report, run_checks
from servelib.exercises.miscount import diagnose
from servelib.exercises.number import check_number
from servelib.model.config import REFERENCE, ModelConfig
from servelib.sim.count import count
from servelib.sim.machines import machine_named
from servelib.sim.models import model_named
from servelib.sim.shape import bytes_per_number, kv_bytes_per_token

CountFn = Callable[[ModelConfig, int, int], float]
"""(config, new tokens, cached tokens) -> operations of the step, for one sequence."""

TOLERANCE = 0.05  # norms, softmax, rotary positions and sums may be counted or left out
STEPS = (
    ("one token, an empty cache", 1, 0),
    ("one token behind 2,000", 1, 2000),
    ("a prompt of 48", 48, 0),
    ("a prompt of 1,500", 1500, 0),
    ("a chunk of 64 behind 1,000", 64, 1000),
)


def _made_up(label: str, **changes: Any) -> ModelConfig:
    sizes = {"vocab_size": 4000, "width": 256, "layers": 4, "heads": 8, "kv_heads": 8, "ffn_size": 700}
    return ModelConfig(label, **{**sizes, **changes})


def _configs() -> list[ModelConfig]:
    return [
        REFERENCE,
        _made_up("a key-value head for each query head"),
        _made_up("one key-value head, wide attention", kv_heads=1, heads=16, head_size=64),
        _made_up("tied output, large vocabulary", vocab_size=50_000, tied_output=True),
        model_named("llama3-8b"),
    ]


def check_count(fn: CountFn) -> Report:
    """Check ``operations_of_a_step(config, new_tokens, cached_tokens)`` of the reader. Never raises.

    Compared with ``servelib.sim.count`` within 5 % on five models and five kinds of step. Where it is
    off as one or two usual slips would make it, the report names them.
    """
    cases = [(config, new, cached) for config in _configs() for _, new, cached in STEPS]
    return run_checks(
        "Operations of a step",
        [
            Check(name, lambda new=new, cached=cached: _count_step(fn, new, cached, cases))  # type: ignore[misc]
            for name, new, cached in STEPS
        ],
    )


def _count_step(fn: CountFn, new: int, cached: int, cases: list[tuple[ModelConfig, int, int]]) -> None:
    for config in _configs():
        right = count(config, [(new, cached)]).operations
        got: Any = fn(config, new, cached)
        tried = f"operations_of_a_step(config, {new}, {cached}) for {config.label}"
        if isinstance(got, bool) or not isinstance(got, Real):
            hint = "Give back a number. Does the function end with return?"
            raise Mistake(tried, f"about {right:.4g}", repr(got), hint)
        if not math.isclose(got, right, rel_tol=TOLERANCE):
            hint = diagnose(fn, cases) or _largest_part(config, new, cached)
            raise Mistake(tried, f"about {right:.4g}", f"{got:.4g}, {got / right:.3g} times that", hint)


def _largest_part(config: ModelConfig, new: int, cached: int) -> str:
    parts = count(config, [(new, cached)]).operations_by_name()
    named = ", ".join(f"{name} {operations:.3g}" for name, operations in parts.items())
    return f"Count part by part and compare. Here the parts are: {named}."


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


def check_roofline(
    answers: Any, *, machine: str = "h100", model: str = "llama3-8b", places: Mapping[str, Place] = PLACES
) -> Report:
    """Check ``{"A": ("memory" or "compute", operations a byte), ...}`` of the reader. Never raises.

    The intensity must be within 10 %. Each product's input and output may be counted as bytes or left
    out: both are right. Raises ``InvalidRequestError`` on an unknown machine or model.
    """
    given = answers if isinstance(answers, Mapping) else {}
    config = model_named(model)
    balance = machine_named(machine).balance(config.dtype)
    checks = [
        Check(
            f"{letter}: {place.words}",
            lambda letter=letter, place=place: _place(given.get(letter), config, place, balance),  # type: ignore[misc]
        )
        for letter, place in places.items()
    ]
    return run_checks("On the roofline", checks)


def _place(answer: Any, config: ModelConfig, place: Place, balance: float) -> None:
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
    right = "compute" if step.intensity > balance else "memory"
    if said != right:
        side = "above" if right == "compute" else "below"
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


def check_kv_bytes(answer: Any, model: str | ModelConfig = "llama3-70b") -> Report:
    """Check the bytes of cache that one token takes in ``model``, a name or a config. Never raises.

    Raises ``InvalidRequestError`` on an unknown model.
    """
    config = model_named(model) if isinstance(model, str) else model
    right, size = kv_bytes_per_token(config), bytes_per_number(config)
    heads = config.heads // config.kv_heads
    query_heads = (
        f"Queries share keys and values: {config.heads} query heads have {config.kv_heads} key-value heads."
    )
    return check_number(
        f"Cache of one token, {config.label}",
        answer,
        right,
        tried="your bytes of cache a token",
        expected=f"keys and values of one token, in all {config.layers} layers, in {config.dtype}",
        hint="Multiply: 2 (a key and a value), layers, key-value heads, head size, bytes of a number.",
        slips=[
            (right / 2, f"Half of it. A token leaves a key and a value, and a number has {size} bytes."),
            (right / size, f"Those are numbers. Each has {size} bytes in {config.dtype}."),
            (right * heads, query_heads),
            (right * heads / 2, f"{query_heads} And a token leaves two of each, a key and a value."),
            (right * 4 / size, f"A number of {config.dtype} has {size} bytes, not 4."),
            (right / config.layers, f"That is one layer. The model has {config.layers}."),
            (right / config.head_size, f"Each head's key has {config.head_size} numbers, not one."),
            (right / config.kv_heads, f"That is one head. Each layer has {config.kv_heads} key-value heads."),
            (right / 1024, "That looks like KiB. Give bytes."),
            (right / 1000, "That looks like kB. Give bytes."),
        ],
        tolerance=0.01,
    )
