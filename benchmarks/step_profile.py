"""Where a decode step's time goes: each part of it in microseconds and as a share, on either kernels.

    python benchmarks/step_profile.py [--threads 1] [--batches 32 64] [--cpu-time] [--json FILE] [--readme]

The parts are timed by hand, in the run itself: each of the model's functions is replaced by one that
runs it and adds up the time. "the rest" is what lies in between (sums, views, Python). The ceiling is the
rate of one large product, measured just before: the last row is how long the step's products would take so.
A timer costs about 0.1 microseconds. On a busy machine, ``--threads 1 --cpu-time`` still holds.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import time
from collections import defaultdict
from collections.abc import Callable
from contextlib import ExitStack
from datetime import UTC, datetime
from pathlib import Path
from typing import Any
from unittest.mock import patch

import torch
from readme import put_table

from servelib.engine.continuous import ContinuousEngine
from servelib.engine.scheduler import Limits, Scheduler
from servelib.fused import model as fused
from servelib.fused.kernels import Kernels
from servelib.fused.model import FusedGPT
from servelib.harness.conditions import machine
from servelib.kv.pool import SlotPool
from servelib.kv.slots import SlotKV, SlotView
from servelib.model import tinygpt
from servelib.model.config import REFERENCE
from servelib.model.linear import linear
from servelib.model.tinygpt import Layer, TinyGPT
from servelib.request import Request, SamplingParams

PROMPT, OUTPUT = 64, 40  # tokens; the reference workload's means are 64 and 32
PARTS = ("schedule", "numbers and masks", "embedding", "norms", "qkv", "rotary", "attention", "out",
         "feed-forward", "the rest", "logits", "sample", "commit")  # fmt: skip
OUTSIDE = ("schedule", "sample", "commit")  # the model
BEGIN, END = "<!-- step profile -->", "<!-- end of step profile -->"
Place = tuple[Any, str, str | Callable[..., str]]
"""Who has a function, its name there, and which part it is, or what says so of its arguments."""


class Timers:
    """Time by part, each without the parts inside it."""

    def __init__(self, now: Callable[[], float]) -> None:
        self.now = now
        self.spent: defaultdict[str, float] = defaultdict(float)
        self._inner = 0.0  # time that the part now running has handed on

    def wrap(self, function: Callable[..., Any], name: str | Callable[..., str]) -> Callable[..., Any]:
        """``function``, timed as the part called ``name``, or what ``name`` says of its arguments."""

        def timed(*args: Any, **kwargs: Any) -> Any:
            outer, self._inner = self._inner, 0.0
            begun = self.now()
            result = function(*args, **kwargs)
            took = self.now() - begun
            part = name if isinstance(name, str) else name(*args)
            self.spent[part] += took - self._inner
            self._inner = outer + took
            return result

        return timed


def pytorch_places(model: TinyGPT) -> list[Place]:
    """The functions of ``model``'s step on PyTorch's kernels."""
    part_of = {id(model.output): "logits"}
    for layer in model.layers:
        assert isinstance(layer, Layer)
        part_of |= {id(layer.qkv): "qkv", id(layer.out): "out"}
        part_of |= dict.fromkeys((id(layer.gate), id(layer.up), id(layer.down)), "feed-forward")
    return [
        (SlotKV, "view", "numbers and masks"),
        (tinygpt, "norm", "norms"),
        (tinygpt, "rotate", "rotary"),
        (tinygpt, "linear", lambda x, weight: part_of[id(weight)]),
        (SlotView, "attend", "attention"),
    ]


def fused_places(model: FusedGPT) -> list[Place]:
    """The functions of ``model``'s step on the fused kernels: the rotary part is in attention's."""
    part_of = {id(model._output): "logits"}
    for layer in model._layers:
        part_of |= {id(layer.qkv): "qkv", id(layer.out): "out"}
        part_of |= dict.fromkeys((id(layer.gate_up), id(layer.down)), "feed-forward")
    return [
        (fused, "_tokens", "numbers and masks"),
        (Kernels, "add_rms_norm", "norms"),
        (Kernels, "attention", "attention"),
        (Kernels, "silu_and_mul", "feed-forward"),
        (fused._Matrix, "__call__", lambda matrix, x: part_of[id(matrix)]),
    ]


def profile(model: TinyGPT | FusedGPT, batch: int, now: Callable[[], float]) -> dict[str, float]:
    """Median microseconds of each part of a decode step with ``batch`` requests."""
    engine, timers = engine_for(model, batch), Timers(now)
    places: list[Place] = [
        (engine.scheduler, "schedule", "schedule"),
        (engine.scheduler, "commit", "commit"),
        (model, "run", "the rest"),
        (model, "sample_batch", "sample"),
        (torch.nn.functional, "embedding", "embedding"),
        *(fused_places(model) if isinstance(model, FusedGPT) else pytorch_places(model)),
    ]
    steps: list[dict[str, float]] = []
    with ExitStack() as stack:
        for owner, attribute, name in places:
            stack.enter_context(patch.object(owner, attribute, timers.wrap(getattr(owner, attribute), name)))
        while engine.has_work:
            timers.spent = defaultdict(float)
            engine.step()
            steps.append(timers.spent)
    decodes = steps[4:-1]  # without the prefill, the first few, and the one in which all leave
    return {part: statistics.median(step.get(part, 0.0) for step in decodes) * 1e6 for part in PARTS}


def engine_for(model: TinyGPT | FusedGPT, batch: int) -> ContinuousEngine:
    """An engine with ``batch`` requests waiting, all of which its next step lets in."""
    size = PROMPT + OUTPUT
    scheduler = Scheduler(SlotPool(batch, size), Limits(batch, batch * PROMPT))
    engine = ContinuousEngine(model, model.new_slots(batch, size), scheduler)
    for i in range(batch):
        ids = tuple((7 * i + 13 * k) % model.config.vocab_size for k in range(PROMPT))
        engine.add_request(Request(f"r{i}", ids, SamplingParams(max_tokens=OUTPUT, ignore_eos=True)))
    return engine


def ceiling(now: Callable[[], float]) -> float:
    """Operations a second of one large product, the median of several."""
    x, weight = torch.randn(1024, 1024), torch.nn.Parameter(torch.randn(1024, 1024), requires_grad=False)
    took = []
    for _ in range(30):
        begun = now()
        linear(x, weight)
        took.append(now() - begun)
    return 2 * 1024**3 / statistics.median(took[5:])


def table(columns: dict[tuple[int, str], dict[str, float]], most: float) -> list[str]:
    """A row a part, a column a batch and its kernels."""
    totals = {key: sum(column.values()) for key, column in columns.items()}
    outside = {key: sum(column[part] for part in OUTSIDE) for key, column in columns.items()}
    config = REFERENCE
    weights = config.parameters - config.vocab_size * config.width  # an embedding is looked up
    shown = [
        row("decode step, µs (share)", [f"{batch} requests, {kernels}" for batch, kernels in columns]),
        row("---", ["---:"] * len(columns)),
    ]
    for part in PARTS:
        cells = [f"{column[part]:,.0f} ({column[part] / totals[key]:.0%})" for key, column in columns.items()]
        shown.append(row(part, cells))
    return [
        *shown,
        row("step", [f"{total:,.0f}" for total in totals.values()]),
        row("tokens/s", [f"{1e6 * batch / total:,.0f}" for (batch, _), total in totals.items()]),
        row("outside the model (at most 10 %)", [f"{outside[key] / totals[key]:.1%}" for key in columns]),
        row(
            f"its products at the ceiling, {most / 1e9:.0f} Gop/s",
            [f"{2e6 * batch * weights / most:,.0f}" for batch, _ in columns],
        ),
    ]


def row(name: str, cells: list[str]) -> str:
    """A row of a table."""
    return f"| {name} | {' | '.join(cells)} |"


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--threads", type=int, default=1, help="that compute a step (default: 1)")
    parser.add_argument("--batches", type=int, nargs="+", default=[32, 64], help="(default: 32 64)")
    parser.add_argument(
        "--cpu-time", action="store_true", help="count this process's CPU time, not the clock"
    )
    parser.add_argument("--json", type=Path, help="write the numbers here")
    parser.add_argument("--readme", action="store_true", help="write the table into benchmarks/README.md")
    options = parser.parse_args()
    load = os.getloadavg()[0]
    torch.set_num_threads(options.threads)
    now = time.process_time if options.cpu_time else time.perf_counter
    model = TinyGPT(REFERENCE)
    kernels = {"pytorch": model, "fused": FusedGPT(model)}
    for runs in kernels.values():
        profile(runs, 2, now)  # warm
    most = ceiling(now)
    columns = {
        (batch, name): profile(runs, batch, now)
        for batch in options.batches
        for name, runs in kernels.items()
    }
    conditions = (
        f"Conditions: {REFERENCE.label} ({REFERENCE.parameters:,} params), {machine()}, torch "
        f"{torch.__version__}, {options.threads} thread{'s' if options.threads > 1 else ''}, continuous "
        f"engine, behind {PROMPT} to {PROMPT + OUTPUT} tokens, medians of {OUTPUT - 5} steps, load average "
        f"{load:.2f} before, measured {datetime.now(UTC).isoformat(timespec='seconds')}"
    )
    shown = "\n".join([*table(columns, most), "", conditions])
    print(shown)
    if options.json:
        found = {f"{batch}, {name}": column for (batch, name), column in columns.items()}
        options.json.write_text(
            json.dumps({"conditions": conditions, "ceiling": most, "us": found}, indent=1)
        )
    if options.readme:
        put_table(BEGIN, END, shown)


if __name__ == "__main__":
    main()
