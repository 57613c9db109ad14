"""What every runner does the same: load, say so, then answer one job a line. Standard library only.

A runner is a process in its peer's environment: ``python run_NAME.py FOLDER THREADS``. A job is
``{"prompts": [[ids]], "lengths": [n]}``; the answer has the ids of exactly that many new tokens for each, and
the seconds that took, as the process itself saw them: on the clock, and of its threads' work.
"""

from __future__ import annotations

import gc
import json
import os
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path

Ids = Sequence[int]
Generate = Callable[[list[list[int]], list[int]], list[list[int]]]


def at_once(best: int) -> int:
    """How many sequences a step holds at most: the peer's ``best`` here, unless SEQUENCES says other."""
    return int(os.environ.get("SEQUENCES", best))


def serve(load: Callable[[Path, int], Generate]) -> None:
    """Answer jobs on standard input until it closes."""
    answers = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)  # what a library prints must not end up between the answers
    folder, threads = Path(sys.argv[1]), int(sys.argv[2])
    if hasattr(os, "sched_setaffinity"):  # as many cores as threads, on a machine with more
        os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[:threads])
    generate = load(folder, threads)
    gc.collect()
    gc.freeze()  # as a server does: a later collection need not look at all that loading left, 0.1 s each
    print(json.dumps({"ready": True}), file=answers)
    for line in sys.stdin:
        job = json.loads(line)
        began, worked = time.perf_counter(), time.process_time()
        tokens = generate(job["prompts"], job["lengths"])
        answer = {
            "seconds": time.perf_counter() - began,
            "cpu_seconds": time.process_time() - worked,  # of all its threads
            "tokens": [list(map(int, ids)) for ids in tokens],
        }
        print(json.dumps(answer), file=answers)


def by_length(lengths: Sequence[int], size: int) -> list[list[int]]:
    """Indices in batches of at most ``size``, requests of like output length together.

    For peers that give a batch as many tokens as its longest wants: so they waste least.
    """
    order = sorted(range(len(lengths)), key=lengths.__getitem__, reverse=True)
    return [order[i : i + size] for i in range(0, len(order), size)]
