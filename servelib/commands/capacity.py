"""``servelib capacity``: the largest arrival rate that still meets the objectives."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable
from dataclasses import asdict

from servelib.commands.bench import EXIT_BROKEN, EXIT_INTERRUPTED, add_system, make_system
from servelib.commands.options import Parser, UsageError, fraction, integer, output_file, positive
from servelib.commands.save import save
from servelib.commands.signals import stop_in_order
from servelib.commands.traffic import LAWS_WITH_A_RATE, Traffic, add_traffic, traffic
from servelib.errors import InvalidRequestError
from servelib.harness.capacity import Capacity, Evaluation, find_capacity
from servelib.harness.metrics import SLO
from servelib.harness.report import conditions_of, to_json
from servelib.harness.stats import Estimate
from servelib.harness.sweep import Point, SweepError, sweep_system
from servelib.harness.system import System
from servelib.harness.window import Verdict

HELP = """\
Search for the largest arrival rate at which enough requests meet every objective.

examples:
  servelib capacity --engine cached --clock virtual --target 0.9
  servelib capacity --url http://127.0.0.1:8000 --model NAME --requests 200 --max-runs 40
"""
DEFAULT_REQUESTS = 200  # fewer, and a short queue at an overloaded server passes for a good one


INTERRUPTED = "interrupted; what was evaluated is kept"


class _StoppedError(Exception):
    """The search ends here, with an exit code and what to say."""

    def __init__(self, code: int, message: str) -> None:
        super().__init__(message)
        self.code = code


def add_capacity(commands: argparse._SubParsersAction[Parser]) -> None:
    """Add ``capacity``."""
    parser = commands.add_parser("capacity", help="find the largest rate that holds", description=HELP)
    add = parser.add_argument
    add("--target", type=fraction, default=0.9, metavar="F", help="of requests in time (default: 0.9)")
    add("--start", type=positive, default=1.0, metavar="R", help="rate to begin with (default: 1)")
    add("--tolerance", type=positive, default=0.02, metavar="F", help="how near, of the rate (default: 0.02)")
    add("--max-runs", type=integer(1), default=100, metavar="N", help="bound of the cost (default: 100)")
    add_system(parser)
    add_traffic(parser, requests=DEFAULT_REQUESTS)
    add("--json", type=output_file, metavar="FILE", help="write the estimate and every evaluation here")
    parser.set_defaults(parser=parser, run=_run)


def _run(options: argparse.Namespace) -> int:
    if options.closed_loop or options.arrivals.partition(":")[0] not in LAWS_WITH_A_RATE:
        raise UsageError(f"capacity varies the rate: --arrivals must be one of {', '.join(LAWS_WITH_A_RATE)}")
    if options.max_runs < options.runs:
        raise UsageError(f"--max-runs {options.max_runs} is less than the {options.runs} runs of one rate")
    load = traffic(options, None, [options.start])
    system = make_system(options, load)
    with stop_in_order() as should_stop:
        return _search(options, system, load, should_stop)


def _search(
    options: argparse.Namespace, system: System, load: Traffic, should_stop: Callable[[], bool]
) -> int:
    slo = SLO(options.slo_ttft, options.slo_itl)
    points: list[Point] = []

    def attain(rate: float) -> Estimate:
        try:
            (point,) = sweep_system(
                system,
                load.source,
                [rate],
                runs=options.runs,
                slo=slo,
                warmup=0 if points else options.warmup,
                should_stop=should_stop,
            )
        except SweepError as error:
            raise _StoppedError(EXIT_BROKEN, str(error)) from error
        if point.summary.interrupted:
            raise _StoppedError(EXIT_INTERRUPTED, INTERRUPTED)
        points.append(point)
        print(
            f"  {rate:.4g}/s: {_share(point.summary.goodput_fraction)} in time", file=sys.stderr, flush=True
        )
        return point.summary.goodput_fraction

    code, complaint, found = 0, "", None
    try:
        found = find_capacity(
            attain,
            target=options.target,
            start=options.start,
            tolerance=options.tolerance,
            max_evaluations=options.max_runs // options.runs,
        )
    except InvalidRequestError as error:  # before anything ran
        raise UsageError(f"--{error}") from None
    except _StoppedError as error:
        code, complaint = error.code, str(error)
    except KeyboardInterrupt:  # asked twice
        code, complaint = EXIT_INTERRUPTED, INTERRUPTED
    try:
        if points:
            _report(
                options, points, found or Capacity(Estimate(None, note=complaint), options.target, (), False)
            )
    finally:
        if complaint:
            print(f"servelib: error: {complaint}", file=sys.stderr)
    return code


def _report(options: argparse.Namespace, points: list[Point], found: Capacity) -> None:
    """Write the file that was asked for, then print what was found."""
    points = sorted(points, key=lambda p: p.rate)
    rate = found.rate
    try:
        if options.json is not None:
            content = {
                "conditions": points[0].conditions.over(tuple(p.rate for p in points)).to_dict(),
                "target": options.target,
                "capacity": rate.value,
                "capacity_interval": [rate.low, rate.high],
                "settled": found.settled,
                "note": rate.note,
                "evaluations": [asdict(Evaluation(p.rate, p.summary.goodput_fraction)) for p in points],
            }
            save(options.json, to_json(content))
    finally:  # a full disk does not keep the table back
        print(_shown(rate, options.target, SLO(options.slo_ttft, options.slo_itl), settled=found.settled))
        at = next((point for point in points if point.rate == rate.value), None)
        if at is not None and (unsteady := at.summary.steady.get(Verdict.NO_STEADY_STATE.value)):
            print(f"At that rate {unsteady} of {options.runs} runs had no steady state: a longer run "
                  "(--requests) may well find less.")  # fmt: skip
        print(_table(points))
        print(conditions_of(points))


def _shown(rate: Estimate, target: float, slo: SLO, *, settled: bool) -> str:
    goal = f"{target:.0%} of requests with TTFT <= {slo.ttft:g} s and every gap <= {slo.gap:g} s"
    if rate.value is None:
        return f"Capacity unknown ({goal}): {rate.note}."
    low = "?" if rate.low is None else f"{rate.low:.4g}"
    high = "?" if rate.high is None else f"{rate.high:.4g}"
    notes = [rate.note] if rate.note else []
    if not settled and not notes:
        notes.append("an end of the interval is not settled: more --max-runs, or more --runs than one")
    return f"Capacity {rate.value:.4g} requests/s [{low}, {high}] ({goal})." + "".join(
        f" {n}." for n in notes
    )


def _table(points: list[Point]) -> str:
    lines = [f"{'rate req/s':>10}  {'in time':<28}  steady state"]
    for point in points:
        verdicts = ", ".join(f"{name} ({n})" for name, n in point.summary.steady.items())
        lines.append(f"{point.rate:>10.4g}  {_share(point.summary.goodput_fraction):<28}  {verdicts}")
    return "\n".join(lines)


def _share(estimate: Estimate) -> str:
    shown = "-" if estimate.value is None else f"{estimate.value:.1%}"
    return shown + (" [{:.1%}, {:.1%}]".format(*estimate.interval) if estimate.interval else "")
