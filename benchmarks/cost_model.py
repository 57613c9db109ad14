"""How well the cost model predicts: steps it has not seen, whole runs, and how fast it simulates them.

    python benchmarks/cost_model.py
    python benchmarks/cost_model.py --rates 4,8 --runs 1 --speed 1000,10000      in under a minute
    python benchmarks/cost_model.py --readme          also writes the table of benchmarks/README.md

1. The two ceilings of this machine and the cost of a launch are measured, then every engine runs live
   and the roofline is calibrated to its steps; every fourth request is held out and tested on.
2. The reference workload runs live with each engine, and again in virtual time on the calibrated cost.
3. Simulations of growing size, each in a process of its own: seconds, and the most memory it held.

One thread computes. The machine should be idle: the load average is in the conditions.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime

from readme import put_table

from servelib.clock import Clock, VirtualClock, WallClock
from servelib.commands.model import reference_model
from servelib.engine.protocol import Engine
from servelib.engine.registry import ENGINES, ServedModel, make_engine
from servelib.harness.drive import drive
from servelib.harness.sweep import Point, sweep_system
from servelib.harness.system import InProcess
from servelib.harness.trace import REFERENCE_WORKLOAD
from servelib.model.config import REFERENCE
from servelib.sim.calibrate import Calibrated, calibrate
from servelib.sim.ceilings import Ceilings, launch_overhead, measure_ceilings
from servelib.sim.cost import Cost
from servelib.sim.fit import Fit, Sample, fit, samples_from
from servelib.sim.model import CostedModel
from servelib.sim.roofline import RooflineCost
from servelib.sim.shape import weight_bytes
from servelib.spans import SpanLog

BEGIN, END = "<!-- cost model -->", "<!-- end of cost model -->"
STEP_BAR, THROUGHPUT_BAR, TTFT_BAR = 0.15, 0.10, 0.20

SPEED = """
import json, resource, sys, time
from servelib.sim.simulate import Settings, simulate
start = time.perf_counter()
simulate(Settings(engine=sys.argv[1], requests=int(sys.argv[2])))
seconds = time.perf_counter() - start
try:  # on Linux getrusage remembers what the process was before it became this one
    with open("/proc/self/status") as status:
        peak = 1024 * int(next(line for line in status if line.startswith("VmHWM")).split()[1])
except OSError:
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
print(json.dumps([seconds, peak]))
"""


@dataclass(frozen=True)
class Compared:
    """One engine at one rate, live and predicted."""

    engine: str
    rate: float
    live: Point
    predicted: Point

    def off(self, name: str) -> float:
        """The prediction of an estimate over what was measured, minus 1."""
        found, true = (point.summary.estimates()[name].value for point in (self.predicted, self.live))
        assert found is not None
        assert true
        return found / true - 1


def live_samples(model: ServedModel, requests: int) -> list[Sample]:
    """Steps of every engine, with prompts that no measured run uses."""
    clock, samples = WallClock(), []
    drive(make_engine("naive", model, clock), REFERENCE_WORKLOAD.warmup(2), clock)
    for name in ENGINES:
        spans = SpanLog()
        drive(make_engine(name, model, clock, spans), REFERENCE_WORKLOAD.warmup(requests), clock)
        samples += samples_from(spans.spans(), prefix=f"{name}:")
    return samples


def compared(model: ServedModel, cost: Cost, rates: Sequence[float], runs: int) -> Iterator[Compared]:
    for name in ENGINES:

        def live(clock: Clock, name: str = name) -> Engine:
            return make_engine(name, model, clock)

        def predicted(clock: Clock, name: str = name) -> Engine:
            assert isinstance(clock, VirtualClock)
            return make_engine(name, CostedModel(REFERENCE, cost, clock), clock)

        wall = sweep_system(InProcess(live), REFERENCE_WORKLOAD, rates, runs=runs)
        virtual = sweep_system(InProcess(predicted, "virtual"), REFERENCE_WORKLOAD, rates, runs=runs)
        for one, other in zip(wall, virtual, strict=True):
            yield Compared(name, one.rate, one, other)


def speed(engine: str, requests: int) -> tuple[float, float]:
    """Seconds and bytes of one simulation, in a fresh process."""
    command = [sys.executable, "-c", SPEED, engine, str(requests)]
    done = subprocess.run(command, check=True, capture_output=True, text=True)
    seconds, peak = json.loads(done.stdout)
    return seconds, peak


def verdict(within: bool) -> str:
    return "yes" if within else "**no**"


def steps_table(found: Calibrated, line: Fit, bare: float) -> list[str]:
    worst, predicted = found.worst
    cost = found.cost
    return [
        "| step times | held-out steps | median error | p90 | all together | within 15 % |",
        "| --- | --- | --- | --- | --- | --- |",
        f"| roofline, calibrated | {found.held_out:,} | {found.median_error:.1%} | {found.p90_error:.1%} "
        f"| {found.total_error:+.1%} | {verdict(found.median_error <= STEP_BAR)} |",
        f"| fitted line | {line.held_out:,} | {line.median_error:.1%} | {line.p90_error:.1%} "
        f"| {line.total_error:+.1%} | {verdict(line.median_error <= STEP_BAR)} |",
        f"| roofline at its ceilings, no launch | {found.held_out:,} | {bare:.1%} | | | |",
        "",
        f"Calibrated: launch {1e3 * cost.overhead:.2f} ms a step (measured), {cost.compute:.0%} of the "
        f"fastest product, {cost.memory:.0%} of the read bandwidth of the cache. Predicted worst: "
        f"{worst.new_tokens} new tokens behind {worst.cached_tokens}, {1e3 * predicted:.2f} ms, "
        f"took {1e3 * worst.seconds:.2f} ms.",
    ]


def ceilings_table(seen: Ceilings) -> list[str]:
    products = [f"{c.size} x {c.size}: {c.rate / 1e9:.0f} Gop/s" for c in seen.products]
    reads = [f"{c.size / 2**20:g} MiB: {c.rate / 1e9:.0f} GB/s" for c in seen.reads]
    return [
        "| ceilings, medians | |",
        "| --- | --- |",
        f"| product of two matrices | {', '.join(products)} |",
        f"| sum over memory | {', '.join(reads)} |",
    ]


def runs_table(seen: Sequence[Compared]) -> list[str]:
    rows = [
        "| engine, rate | output tok/s live | predicted | off | TTFT p50 live | predicted | off | within |",
        "| --- | --- | --- | --- | --- | --- | --- | --- |",
    ]
    for one in seen:
        live, predicted = one.live.summary, one.predicted.summary
        tokens, first = one.off("output_tokens_per_second"), one.off("ttft_p50")
        within = abs(tokens) <= THROUGHPUT_BAR and abs(first) <= TTFT_BAR
        rows.append(
            f"| {one.engine}, {one.rate:g}/s | {live.output_tokens_per_second.value:.1f} "
            f"| {predicted.output_tokens_per_second.value:.1f} | {tokens:+.1%} "
            f"| {1e3 * (live.ttft_p50.value or 0):.1f} ms | {1e3 * (predicted.ttft_p50.value or 0):.1f} ms "
            f"| {first:+.1%} | {verdict(within)} |"
        )
    return rows


def speed_table(sizes: Sequence[int]) -> list[str]:
    rows = [
        "| simulated requests | engine | seconds | a request | peak memory |",
        "| --- | --- | --- | --- | --- |",
    ]
    for requests in sizes:
        for engine in ENGINES:
            seconds, peak = speed(engine, requests)
            rows.append(
                f"| {requests:,} | {engine} | {seconds:.2f} | {1e6 * seconds / requests:.0f} us "
                f"| {peak / 1e6:.0f} MB |"
            )
    return rows


def numbers(text: str) -> list[float]:
    return [float(part) for part in text.split(",")]


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--calibration", type=int, default=32, help="requests of each engine (default: 32)")
    parser.add_argument("--rates", type=numbers, default=[1.0, 4.0, 8.0], help="default: 1,4,8")
    parser.add_argument("--runs", type=int, default=3, help="live runs at each rate (default: 3)")
    parser.add_argument("--speed", type=numbers, default=[1e3, 1e4, 1e5], help="default: 1000,10000,100000")
    parser.add_argument("--readme", action="store_true", help="write the tables into benchmarks/README.md")
    options = parser.parse_args()

    load = os.getloadavg()[0]
    model = reference_model(1)
    ceilings = measure_ceilings()
    bare = RooflineCost(REFERENCE, ceilings.machine(held=weight_bytes(REFERENCE)))
    started = RooflineCost(REFERENCE, bare.machine, overhead=launch_overhead())
    samples = live_samples(model, options.calibration)
    found, line = calibrate(started, samples), fit(samples)
    off = sorted(abs(bare.seconds(s.new_tokens, s.cached_tokens) / s.seconds - 1) for s in samples)
    seen = list(compared(model, found.cost, options.rates, options.runs))
    parts = [
        ceilings_table(ceilings),
        steps_table(found, line, off[len(off) // 2]),
        runs_table(seen),
        speed_table([int(n) for n in options.speed]),
        [
            f"Conditions: {REFERENCE.label}, {ceilings.where}, {len(samples):,} steps, "
            f"{options.runs} runs of {REFERENCE_WORKLOAD.requests} requests, load average {load:.2f}, "
            f"{datetime.now(UTC).isoformat(timespec='seconds')}"
        ],
    ]
    table = "\n\n".join("\n".join(part) for part in parts)
    print(table)
    if options.readme:
        put_table(BEGIN, END, table)


if __name__ == "__main__":
    main()
