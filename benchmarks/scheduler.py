"""What scheduling costs a step, against how many requests run and how many wait.

    python benchmarks/scheduler.py
    python benchmarks/scheduler.py --readme          also writes the table of benchmarks/README.md

Nothing is computed: a step is ``schedule`` and ``commit`` with a token for each row, every running request
decodes, and the pool holds no more than those that run, so that who waits stays in line. Sizes are visited
in turn, again and again, so that a machine that is busy meanwhile slows all of them. Processor time of the
thread, medians of the rounds.

Expected: a cost that grows with the running requests, in proportion, and not with the waiting ones. The
bars: 256 running cost at most 1.5 times as much each as 32 do; 10,000 waiting cost at most 1.2 times as
much as none.
"""

from __future__ import annotations

import argparse
import os
import time
from datetime import UTC, datetime
from statistics import median

from readme import put_table

from servelib.engine.batch import Batch
from servelib.engine.scheduler import Limits, Scheduler
from servelib.harness.conditions import machine
from servelib.kv.pool import SlotPool
from servelib.request import Request, RequestState, SampledToken, SamplingParams

RUNNING = (1, 4, 16, 32, 64, 128, 256)
WAITING = (0, 10, 100, 1_000, 10_000)
STEPS = 20  # of one timing
PROMPT = (1,) * 64
PER_REQUEST_BAR, WAITING_BAR = 1.5, 1.2
BEGIN, END = "<!-- scheduler -->", "<!-- end of scheduler -->"


def crowd(running: int, waiting: int, rounds: int) -> Scheduler:
    """A scheduler with so many requests that decode, and so many in line, for all the rounds to come."""
    tokens = STEPS * (rounds + 1) + 2
    scheduler = Scheduler(SlotPool(running, len(PROMPT) + tokens), Limits(running, 1 << 20))
    sampling = SamplingParams(max_tokens=tokens, ignore_eos=True)
    for i in range(running + waiting):
        scheduler.add(RequestState(Request(f"r{i}", PROMPT, sampling)))
    scheduler.commit(*one_token(scheduler.schedule()))
    assert (scheduler.running, scheduler.waiting) == (running, waiting)
    return scheduler


def one_token(batch: Batch) -> tuple[Batch, list[list[SampledToken]]]:
    return batch, [[SampledToken(1)] for _ in batch.rows]


def seconds_a_step(scheduler: Scheduler) -> float:
    result = [[SampledToken(1)]] * scheduler.running
    before = time.thread_time()
    for _ in range(STEPS):
        scheduler.commit(scheduler.schedule(), result)
    return (time.thread_time() - before) / STEPS


def measure(rounds: int) -> dict[tuple[int, int], float]:
    """Median seconds of a step by (running, waiting)."""
    sizes = list(dict.fromkeys([*((n, 0) for n in RUNNING), *((64, n) for n in WAITING)]))
    crowds = {size: crowd(*size, rounds) for size in sizes}
    seen: dict[tuple[int, int], list[float]] = {size: [] for size in sizes}
    for turn in range(rounds + 1):
        for size in sizes if turn % 2 else reversed(sizes):
            seen[size].append(seconds_a_step(crowds[size]))
    return {size: median(times[1:]) for size, times in seen.items()}  # the first round warms up


def verdict(within: bool) -> str:
    return "yes" if within else "**no**"


def tables(seen: dict[tuple[int, int], float]) -> list[str]:
    each = {running: seen[running, 0] / running for running in RUNNING}
    lines = ["| running, none waiting | a step | a request |", "| --- | --- | --- |"]
    lines += [f"| {n} | {1e6 * seen[n, 0]:.1f} us | {1e6 * each[n]:.2f} us |" for n in RUNNING]
    lines += ["", "| waiting, 64 running | a step | of that with none |", "| --- | --- | --- |"]
    lines += [f"| {n:,} | {1e6 * seen[64, n]:.1f} us | {seen[64, n] / seen[64, 0]:.2f} |" for n in WAITING]
    growth, behind = each[256] / each[32], seen[64, WAITING[-1]] / seen[64, 0]
    lines += [
        "",
        f"A request of 256 costs {growth:.2f} times one of 32 (at most {PER_REQUEST_BAR}): "
        f"{verdict(growth <= PER_REQUEST_BAR)}. With 10,000 waiting a step costs {behind:.2f} times one "
        f"with none (at most {WAITING_BAR}): {verdict(behind <= WAITING_BAR)}.",
    ]
    return lines


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rounds", type=int, default=40, help="timings of each size (default: 40)")
    parser.add_argument("--readme", action="store_true", help="write the table into benchmarks/README.md")
    options = parser.parse_args()
    load = os.getloadavg()[0]
    lines = tables(measure(options.rounds))
    lines += [
        "",
        f"Conditions: {machine()}, one thread, {options.rounds} rounds of {STEPS} steps, medians, "
        f"load average {load:.2f}, {datetime.now(UTC).isoformat(timespec='seconds')}",
    ]
    table = "\n".join(lines)
    print(table)
    if options.readme:
        put_table(BEGIN, END, table)


if __name__ == "__main__":
    main()
