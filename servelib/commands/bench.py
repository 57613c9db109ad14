"""``servelib bench`` and ``servelib sweep``: run the workload, print a table, write every record."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Mapping
from pathlib import Path

from servelib.clock import Clock, VirtualClock
from servelib.commands.model import add_kernels, add_threads, check_kernels, reference_model, with_kernels
from servelib.commands.options import (
    DEFAULT_ENGINE,
    MOST_RUNS,
    Parser,
    UsageError,
    add_engine,
    engine_options,
    integer,
    output_file,
    positive,
    rate,
    rates,
)
from servelib.commands.progress import progress_bar
from servelib.commands.remote import add_remote, remote_system
from servelib.commands.reports import add_reports, check_reports, write_results
from servelib.commands.signals import stop_in_order
from servelib.commands.traffic import Traffic, add_traffic, traffic
from servelib.engine.protocol import Engine
from servelib.engine.registry import make_engine
from servelib.errors import InvalidRequestError
from servelib.harness.metrics import SLO
from servelib.harness.report import document, point_document
from servelib.harness.sweep import SweepError, sweep_system
from servelib.harness.system import InProcess, MakeEngine, System
from servelib.model.config import REFERENCE
from servelib.sim.cost import load_cost, reference_cost
from servelib.sim.model import CostedModel

EXIT_BROKEN, EXIT_INTERRUPTED = 1, 130

BENCH_HELP = """\
Measure one arrival rate: an open-loop trace, repeated runs, a table with intervals.

examples:
  servelib bench                                   the naive engine at 4 requests/s
  servelib bench --engine cached --rate 8 --runs 5
  servelib bench --engine continuous --rate 32 --max-num-seqs 16
  servelib bench --clock virtual --json a.json     predicted step times: no torch, no waiting,
                                                   and the same bytes every time
  servelib bench --arrivals gamma:0.25 --rate 8    the same load in bursts
  servelib bench --arrivals azure.csv              replay a trace: ours, Azure's, Mooncake's, BurstGPT's
  servelib bench --closed-loop 4                   four patient callers, for contrast
  servelib bench --url http://127.0.0.1:8000 --model NAME    any OpenAI-compatible server
"""

SWEEP_HELP = """\
Measure several arrival rates; repeats go up the rates, then down.

examples:
  servelib sweep                                   1, 4 and 8 requests/s
  servelib sweep --rates 0.25:16:20 --clock virtual    twenty rates, each the same factor apart
"""


def add_bench(commands: argparse._SubParsersAction[Parser]) -> None:
    """Add ``bench``."""
    parser = commands.add_parser("bench", help="measure one arrival rate", description=BENCH_HELP)
    parser.add_argument(
        "--rate", type=rate, metavar="R", help="arrivals per second, or inf: all at once (default: 4)"
    )
    _add_common(parser)
    parser.set_defaults(
        parser=parser,
        run=lambda options: _run(
            options, traffic(options, options.rate and [options.rate], [4.0]), single=True
        ),
    )


def add_sweep(commands: argparse._SubParsersAction[Parser]) -> None:
    """Add ``sweep``."""
    parser = commands.add_parser("sweep", help="measure several arrival rates", description=SWEEP_HELP)
    parser.add_argument(
        "--rates",
        type=rates,
        metavar="LIST",
        help="1,4,8 or LOW:HIGH:COUNT, evenly spaced by factor (default: 1,4,8)",
    )
    _add_common(parser)
    parser.set_defaults(
        parser=parser,
        run=lambda options: _run(options, traffic(options, options.rates, [1.0, 4.0, 8.0]), single=False),
    )


def _add_common(parser: argparse.ArgumentParser) -> None:
    add_system(parser)
    add_traffic(parser)
    parser.add_argument(
        "--json", type=output_file, metavar="FILE", help="write summary and every record here"
    )
    add_reports(parser)


def add_system(parser: argparse.ArgumentParser) -> None:
    """The options that say what is measured, against which objective, how often."""
    add_engine(parser)
    parser.set_defaults(engine=None)  # so that one given beside --url is noticed
    slo, add = SLO(), parser.add_argument
    add(
        "--runs",
        type=integer(1, MOST_RUNS),
        default=3,
        metavar="N",
        help="repeats; run k uses seed + k (default: 3)",
    )
    add("--slo-ttft", type=positive, default=slo.ttft, metavar="S", help="first token within (default: 1 s)")
    add("--slo-itl", type=positive, default=slo.gap, metavar="S", help="every gap within (default: 0.05 s)")
    add(
        "--clock",
        choices=["wall", "virtual"],
        default="wall",
        help="run the model, or predict its step times (default: wall)",
    )
    add_threads(parser)
    add_kernels(parser)
    add("--cost", type=Path, metavar="FILE", help="step cost from `servelib calibrate`, for --clock virtual")
    add_remote(parser)


def _run(options: argparse.Namespace, load: Traffic, *, single: bool) -> int:
    check_reports(options)
    system = make_system(options, load)
    complaint, broken = "", False
    total = load.requests * options.runs * len(load.rates)
    with stop_in_order() as should_stop:
        try:
            with progress_bar(total) as on_progress:
                points = sweep_system(
                    system,
                    load.source,
                    load.rates,
                    runs=options.runs,
                    slo=SLO(options.slo_ttft, options.slo_itl),
                    warmup=options.warmup,
                    on_progress=on_progress,
                    should_stop=should_stop,
                )
        except SweepError as error:
            points, complaint, broken = error.points, str(error), True
        if points:
            write_results(options, points, point_document(points[0]) if single else document(points))
        if broken:
            print(f"servelib: error: {complaint}", file=sys.stderr)
            return EXIT_BROKEN
        return EXIT_INTERRUPTED if should_stop() or any(p.summary.interrupted for p in points) else 0


def make_system(options: argparse.Namespace, load: Traffic) -> System:
    """The server or the engine that the options name. Raises ``UsageError``."""
    remote = remote_system(options, load.source, load.rates[0], options.closed_loop)
    if remote is not None:
        return remote
    if load.longest > REFERENCE.context:
        raise UsageError(
            f"a request can need {load.longest} tokens, prompt and output together; "
            f"the model's context is {REFERENCE.context}"
        )
    name = options.engine or DEFAULT_ENGINE
    given = engine_options(options, name)
    check_kernels(options, name)
    make = _virtual_engine if options.clock == "virtual" else _live_engine
    build = make(options, name, given)
    return InProcess(build, options.clock, options.closed_loop)


def _virtual_engine(options: argparse.Namespace, name: str, given: Mapping[str, int]) -> MakeEngine:
    if options.kernels is not None:
        raise UsageError("--kernels needs --clock wall: in virtual time nothing is computed")
    try:
        cost = reference_cost() if options.cost is None else load_cost(options.cost)
    except InvalidRequestError as error:
        raise UsageError(f"--cost {error}") from None

    def build(clock: Clock) -> Engine:
        if not isinstance(clock, VirtualClock):
            raise TypeError("predicted costs need a virtual clock")
        return make_engine(name, CostedModel(REFERENCE, cost, clock), clock, None, **given)

    return build


def _live_engine(options: argparse.Namespace, name: str, given: Mapping[str, int]) -> MakeEngine:
    if options.cost is not None:
        raise UsageError("--cost needs --clock virtual: a live run takes the time it takes")
    model = with_kernels(reference_model(options.threads), options.kernels)
    return lambda clock: make_engine(name, model, clock, None, **given)
