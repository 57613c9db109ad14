"""The checks of chapter 3: count a step of a model, place steps on the roofline, size the cache."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from numbers import Real
from typing import Any

from servelib.errors import InvalidRequestError
from servelib.exercises.check import Check, Mistake, Report, run_checks
from servelib.exercises.miscount import diagnose
from servelib.exercises.number import check_number
from servelib.exercises.places import PLACES, Place, place_mistakes
from servelib.model.config import REFERENCE, ModelConfig
from servelib.sim.count import count
from servelib.sim.machines import devices_for, machine_named
from servelib.sim.models import model_named
from servelib.sim.roofline import RooflineCost, decode_batch_at_balance
from servelib.sim.shape import bytes_per_number, experts_of, kv_bytes_per_token, weight_bytes

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
            lambda letter=letter, place=place: place_mistakes(given.get(letter), config, place, balance),  # type: ignore[misc]
        )
        for letter, place in places.items()
    ]
    return run_checks("On the roofline", checks)


def check_balance(answer: Any, *, machine: str = "h100", model: str = "llama3-8b") -> Report:
    """Check the batch from which the feed-forward of a decode step waits for computing.

    Within 10 %, with activations or without. Raises ``InvalidRequestError`` on an unknown machine or
    model, or a model that does not fit.
    """
    config, found = model_named(model), machine_named(machine)
    size, balance = bytes_per_number(config), found.balance(config.dtype)
    devices = devices_for(weight_bytes(config) + 1, found)
    right = decode_batch_at_balance(RooflineCost(config, found, devices=devices))
    if right is None:
        raise InvalidRequestError(
            "model", config.label, f"one whose decode turns compute-bound on {found.name}"
        )
    # Weights alone, or activations too: both are right. A mixture's weights depend on the batch.
    plain = balance * size / 2 if experts_of(config) is None else float(right)
    middle = math.sqrt(plain * right)
    return check_number(
        "Where decode turns compute-bound",
        answer,
        middle,
        tried="your batch",
        expected=f"the batch at which the feed-forward of {config.label} computes for as long as it moves "
        f"bytes, on {found.name}",
        hint=f"A weight gives 2 operations for each sequence and is loaded once, as {size} bytes. At which "
        f"batch is that {balance:.3g} operations a byte?",
        slips=[
            (middle / 2, f"Half of it. A weight has {size} bytes, and a multiply-add is two operations."),
            (middle * 2, f"Twice as many. A weight has {size} bytes, and a multiply-add is two operations."),
        ],
        tolerance=1.1 * max(plain, right) / middle - 1.0,
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
