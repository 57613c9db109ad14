"""``servelib simulate``: any engine, machine and model of the catalogue under load, in virtual time."""

from __future__ import annotations

import argparse
import sys

from servelib.commands.bench import EXIT_BROKEN, EXIT_INTERRUPTED
from servelib.commands.options import (
    Parser,
    UsageError,
    add_engine,
    engine_options,
    fraction,
    integer,
    output_file,
    positive,
    rate,
)
from servelib.commands.progress import progress_bar
from servelib.commands.reports import add_reports, check_reports, write_results
from servelib.commands.signals import stop_in_order
from servelib.commands.traffic import add_traffic, traffic
from servelib.errors import InvalidRequestError
from servelib.harness.metrics import SLO
from servelib.harness.report import point_document
from servelib.harness.sweep import SweepError, sweep_system
from servelib.harness.system import InProcess
from servelib.sim.machines import REFERENCE_MACHINE, machines
from servelib.sim.models import REFERENCE_MODEL, models
from servelib.sim.simulate import Reached, Settings, System

HELP = """\
Predict a server under load, on machines and with models you need not have. The engine, the trace and
the report are those of bench; each step takes what its operations and bytes need at the machine's peaks.

examples:
  servelib simulate --engine cached --rate 8
  servelib simulate --engine continuous --machine h100 --model llama3-8b --rate 100
  servelib simulate --machine h100 --model llama3-70b --rate 20 --requests 10000
  servelib simulate --machine l4 --model llama3-8b --prompt 500-1500 --slo-ttft 2 --json a.json
"""


def add_simulate(commands: argparse._SubParsersAction[Parser]) -> None:
    """Add ``simulate``."""
    parser = commands.add_parser(
        "simulate", help="predict any machine and model under load", description=HELP
    )
    slo, add = SLO(), parser.add_argument
    add_engine(parser)
    add("--machine", default=REFERENCE_MACHINE, metavar="NAME",
        help=f"{', '.join(machines())} (default: %(default)s)")  # fmt: skip
    add("--model", default=REFERENCE_MODEL, metavar="NAME",
        help=f"{', '.join(models())} (default: %(default)s)")  # fmt: skip
    add("--devices", type=integer(1, 1024), metavar="N",
        help="share the model evenly (default: the fewest in one server that hold it)")  # fmt: skip
    add("--reached", type=reached, metavar="C,M[,S]",
        help="shares of peak operations and bandwidth, and seconds to launch a step, such as 0.6,0.8,0.002 "
        "(default: 1,1,0, the best case)")  # fmt: skip
    add("--rate", type=rate, metavar="R", help="arrivals per second, or inf: all at once (default: 4)")
    add("--runs", type=integer(1), default=1, metavar="N", help="repeats; run k uses seed + k (default: 1)")
    add("--slo-ttft", type=positive, default=slo.ttft, metavar="S", help="first token within (default: 1 s)")
    add("--slo-itl", type=positive, default=slo.gap, metavar="S", help="every gap within (default: 0.05 s)")
    add_traffic(parser)
    add("--json", type=output_file, metavar="FILE", help="write summary and every record here")
    add_reports(parser)
    parser.set_defaults(parser=parser, run=_run)


def reached(text: str) -> Reached:
    """``0.6,0.8`` or ``0.6,0.8,0.002``: what is reached of a machine."""
    compute, comma, rest = text.partition(",")
    memory, _, overhead = rest.partition(",")
    if not comma:
        raise argparse.ArgumentTypeError(f"got {text!r}, must be two shares, such as 0.6,0.8")
    return Reached(fraction(compute), fraction(memory), positive(overhead) if overhead else 0.0)


def _run(options: argparse.Namespace) -> int:
    check_reports(options)
    load = traffic(options, options.rate and [options.rate], [4.0])
    try:
        engine = options.engine or Settings().engine
        system = System(
            engine,
            options.machine,
            options.model,
            options.devices,
            load.longest,
            options.reached,
            engine_options(options, engine),
        )
        engines = InProcess(system.maker(), "virtual", options.closed_loop)
    except InvalidRequestError as error:
        raise UsageError(str(error)) from None
    complaint = ""
    with stop_in_order() as should_stop, progress_bar(load.requests * options.runs) as on_progress:
        try:
            points = sweep_system(
                engines,
                load.source,
                load.rates,
                runs=options.runs,
                slo=SLO(options.slo_ttft, options.slo_itl),
                on_progress=on_progress,
                should_stop=should_stop,
            )
        except SweepError as error:
            points, complaint = error.points, str(error)
    if points:
        write_results(options, points, point_document(points[0]))
    if complaint:
        print(f"servelib: error: {complaint}", file=sys.stderr)
        return EXIT_BROKEN
    return EXIT_INTERRUPTED if any(point.summary.interrupted for point in points) else 0
