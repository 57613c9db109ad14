"""``servelib calibrate``: fit the step cost of virtual time to this machine."""

from __future__ import annotations

import argparse
import sys
from datetime import UTC, datetime

from servelib.clock import WallClock
from servelib.commands.bench import EXIT_INTERRUPTED
from servelib.commands.model import add_threads, reference_model
from servelib.commands.options import Parser, integer, output_file
from servelib.commands.progress import progress_bar
from servelib.commands.save import save
from servelib.engine.registry import make_engine
from servelib.harness.conditions import machine, torch_in_use
from servelib.harness.drive import drive, shifted
from servelib.harness.report import to_json
from servelib.harness.trace import REFERENCE_WORKLOAD
from servelib.sim.cost import COEFFICIENTS
from servelib.spans import SpanLog

LEARNT_FROM = ("naive", "cached", "continuous")
"""Whole sequences, single tokens, and batches. A static batch's spans do not tell its pads."""

TRUSTED_ERROR = 0.20  # beyond it, the machine was doing something else meanwhile

HELP = """\
Fit the step cost that --clock virtual charges: run engines live, alone and in batches, and
report the error on requests that the fit has not seen.

examples:
  servelib calibrate --json cost.json
  servelib bench --clock virtual --cost cost.json
"""


def add_calibrate(commands: argparse._SubParsersAction[Parser]) -> None:
    """Add ``calibrate``."""
    parser = commands.add_parser("calibrate", help="fit virtual time to this machine", description=HELP)
    parser.add_argument(
        "--requests",
        type=integer(8, 10_000),
        default=32,
        metavar="N",
        help="for each engine (default: %(default)s)",
    )
    add_threads(parser)
    parser.add_argument("--json", type=output_file, metavar="FILE", help="write the cost here, for --cost")
    parser.set_defaults(parser=parser, run=_run)


def _run(options: argparse.Namespace) -> int:
    from servelib.sim.fit import fit, samples_from  # here: only a fit needs numpy and scipy

    model, clock, samples = reference_model(options.threads), WallClock(), []
    trace = REFERENCE_WORKLOAD.warmup(options.requests)
    total = len(LEARNT_FROM) * len(trace.requests)
    drive(make_engine("naive", model, clock), REFERENCE_WORKLOAD.warmup(2), clock)  # first calls are slow
    with progress_bar(total) as on_progress:
        for i, name in enumerate(LEARNT_FROM):
            spans = SpanLog()
            engine = make_engine(name, model, clock, spans)
            run = drive(engine, trace, clock, on_progress=shifted(on_progress, i * options.requests, total))
            if run.interrupted:
                return EXIT_INTERRUPTED
            samples += samples_from(spans.spans(), prefix=f"{name}:")
    where = f"{machine()}, torch {torch_in_use()}"
    moment = datetime.now(UTC).isoformat(timespec="seconds")
    found = fit(samples, provenance=f"step cost fitted on {where}, {moment[:10]}")
    print(f"{found.samples} steps of {total} requests, engines {', '.join(LEARNT_FROM)}; {where}")
    for name in COEFFICIENTS:
        print(f"  {name:<12}{getattr(found.cost, name):.4g} s")
    print(
        f"error on {found.held_out} held-out steps: median {found.median_error:.1%}, "
        f"p90 {found.p90_error:.1%}, of their total time {found.total_error:+.1%}"
        + ("" if found.batch_error is None else f"; of batches: median {found.batch_error:.1%}")
    )
    if max(found.median_error, abs(found.total_error)) > TRUSTED_ERROR:
        print(
            f"servelib calibrate: error above {TRUSTED_ERROR:.0%}; try on a quieter machine",
            file=sys.stderr,
        )
    if options.json is not None:
        content = {
            **{name: getattr(found.cost, name) for name in COEFFICIENTS},
            "provenance": found.cost.provenance,
            "machine": machine(),
            "torch": torch_in_use(),
            "measured": moment,
            "command": f"servelib calibrate --requests {options.requests}",
            "samples": found.samples,
            "held_out": found.held_out,
            "median_error": found.median_error,
            "p90_error": found.p90_error,
            "total_error": found.total_error,
            "batch_error": found.batch_error,
        }
        save(options.json, to_json(content))
    return 0
