"""Where a decode step's time goes: each part of it in microseconds and as a share, at several batch sizes.

    python benchmarks/step_profile.py [--threads 2] [--batches 1 8 32 64 128] [--cpu-time] [--json FILE]

The parts are timed by hand, in the run itself: each of the model's functions is replaced by one that
runs it and adds up the time. "layers, rest" is what the layers do in between (activation, residual sums,
views). A timer costs about 0.1 microseconds. On a busy machine, ``--threads 1 --cpu-time`` still holds.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from collections import defaultdict
from collections.abc import Callable
from contextlib import ExitStack
from typing import Any
from unittest.mock import patch

import torch

from servelib.engine.continuous import ContinuousEngine
from servelib.engine.scheduler import Limits, Scheduler
from servelib.kv.pool import SlotPool
from servelib.kv.slots import SlotKV, SlotView
from servelib.model import tinygpt
from servelib.model.tinygpt import Layer, TinyGPT
from servelib.request import Request, SamplingParams

PROMPT, OUTPUT = 64, 40  # tokens; the reference workload's means are 64 and 32
PARTS = ("schedule", "numbers and masks", "embedding", "norms", "qkv", "rotary", "attention", "out", "ffn",
         "layers, rest", "logits", "model, rest", "sample", "commit")  # fmt: skip


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


def profile(model: TinyGPT, batch: int, now: Callable[[], float]) -> dict[str, float]:
    """Median microseconds of each part of a decode step with ``batch`` requests."""
    engine, timers = engine_for(model, batch), Timers(now)
    part_of = {id(model.output): "logits"}
    for layer in model.layers:
        assert isinstance(layer, Layer)
        part_of |= {
            id(layer.qkv): "qkv",
            id(layer.out): "out",
            id(layer.gate): "ffn",
            id(layer.up): "ffn",
            id(layer.down): "ffn",
        }
    places: list[tuple[Any, str, str | Callable[..., str]]] = [
        (engine.scheduler, "schedule", "schedule"),
        (engine.scheduler, "commit", "commit"),
        (model, "run", "model, rest"),
        (model, "sample_batch", "sample"),
        (SlotKV, "view", "numbers and masks"),
        (torch.nn.functional, "embedding", "embedding"),
        (tinygpt, "norm", "norms"),
        (tinygpt, "rotate", "rotary"),
        (tinygpt, "linear", lambda x, weight: part_of[id(weight)]),
        (SlotView, "attend", "attention"),
        (Layer, "forward", "layers, rest"),
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


def engine_for(model: TinyGPT, batch: int) -> ContinuousEngine:
    """An engine with ``batch`` requests waiting, all of which its next step lets in."""
    size = PROMPT + OUTPUT
    scheduler = Scheduler(SlotPool(batch, size), Limits(batch, batch * PROMPT))
    engine = ContinuousEngine(model, model.new_slots(batch, size), scheduler)
    for i in range(batch):
        ids = tuple((7 * i + 13 * k) % model.config.vocab_size for k in range(PROMPT))
        engine.add_request(Request(f"r{i}", ids, SamplingParams(max_tokens=OUTPUT, ignore_eos=True)))
    return engine


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    parser.add_argument("--batches", type=int, nargs="+", default=[1, 8, 32, 64, 128])
    parser.add_argument(
        "--cpu-time", action="store_true", help="count this process's CPU time, not the clock"
    )
    parser.add_argument("--json", help="write the numbers here")
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    model = TinyGPT()
    now = time.process_time if options.cpu_time else time.perf_counter
    profile(model, 2, now)  # warm
    columns = {batch: profile(model, batch, now) for batch in options.batches}
    print("us (share)".ljust(18) + "".join(f"batch {batch}".rjust(16) for batch in columns))
    totals = {batch: sum(column.values()) for batch, column in columns.items()}
    for part in PARTS:
        cells = (
            f"{column[part]:,.0f} ({column[part] / totals[batch]:4.0%})" for batch, column in columns.items()
        )
        print(part.ljust(18) + "".join(cell.rjust(16) for cell in cells))
    print("step".ljust(18) + "".join(f"{total:,.0f}".rjust(16) for total in totals.values()))
    print("tokens/s".ljust(18) + "".join(f"{1e6 * b / total:,.0f}".rjust(16) for b, total in totals.items()))
    if options.json:
        with open(options.json, "w", encoding="utf-8") as file:
            json.dump(
                {"threads": options.threads, "cpu_time": options.cpu_time, "us": columns}, file, indent=1
            )


if __name__ == "__main__":
    main()
