"""The options that say what is asked of a server, and when; and the traces that follow from them."""

from __future__ import annotations

import argparse
import math
from dataclasses import dataclass
from pathlib import Path

from servelib.commands.options import (
    MOST_REQUESTS,
    UsageError,
    any_integer,
    integer,
    lengths,
    output_file,
    shared_prefix,
)
from servelib.commands.save import save
from servelib.errors import InvalidRequestError
from servelib.harness.arrivals import mean_rate
from servelib.harness.laws import NAMES, arrivals_from
from servelib.harness.lines import is_file
from servelib.harness.sweep import WARMUP_REQUESTS
from servelib.harness.trace import Trace, TraceSource, Workload
from servelib.harness.trace_files import FixedTrace, read_trace, trace_text

LAWS_WITH_A_RATE = ("poisson", "constant", "gamma")
REFERENCE = Workload()


@dataclass(frozen=True, slots=True)
class Traffic:
    """What a command sends: where traces come from, and at which rates to draw them."""

    source: TraceSource
    rates: list[float]
    requests: int
    longest: int  # tokens of the longest request that can come, prompt and output


def add_traffic(parser: argparse.ArgumentParser, *, requests: int = REFERENCE.requests) -> None:
    """The options of the load."""
    group = parser.add_argument_group("load")
    add = group.add_argument
    add("--arrivals", default="poisson", metavar="LAW", help=f"{NAMES} to replay (default: poisson)")
    add("--time-unit", choices=["s", "ms", "us"], help="of the times in a Mooncake file")
    add("--closed-loop", type=integer(1, MOST_REQUESTS), metavar="N",
        help="for contrast: N callers, each waiting for its answer; no arrival rate")  # fmt: skip
    add("--warmup", type=integer(0, MOST_REQUESTS), default=WARMUP_REQUESTS, metavar="N",
        help="requests before, not counted (default: 2)")  # fmt: skip
    add(
        "--requests",
        type=integer(1, MOST_REQUESTS),
        metavar="N",
        help=f"a run (default: {requests}, or all of a file)",
    )
    add("--seed", type=any_integer, default=REFERENCE.seed, metavar="N", help="of the first run (default: 7)")
    form = "tokens: A-B, N, lognormal:MEDIAN:SIGMA:A-B or a file of lengths"
    add("--prompt", type=lengths, metavar="LENGTHS", help=f"{form} (default: 32-96)")
    add("--output", type=lengths, metavar="LENGTHS", help="likewise (default: 16-48)")
    add("--shared-prefix", type=shared_prefix, metavar="N[:G]",
        help="N tokens more in front of every prompt, the same in all or in each of G groups")  # fmt: skip
    add("--save-trace", type=output_file, metavar="FILE", help="write the first run's trace, for --arrivals")
    parser.set_defaults(default_requests=requests)


def traffic(options: argparse.Namespace, wanted: list[float] | None, default: list[float]) -> Traffic:
    """The traces that the options ask for at the ``wanted`` rates, None if none was given.

    Raises ``UsageError`` on options that do not go together, and on a file that cannot be read.
    """
    if options.time_unit is not None and not is_file(options.arrivals):
        raise UsageError("--time-unit is of a Mooncake file's times: leave it out")
    try:
        made = _closed(options, wanted) if options.closed_loop else _open(options, wanted, default)
        if options.save_trace is not None:
            save(options.save_trace, trace_text(made.source.trace(made.rates[0], 0)))
    except InvalidRequestError as error:
        raise UsageError(f"--{error}" if error.field == "arrivals" else f"--arrivals {error}") from None
    return made


def _closed(options: argparse.Namespace, wanted: list[float] | None) -> Traffic:
    if wanted is not None or options.arrivals != "poisson":
        raise UsageError(
            "--closed-loop: its callers ask when they are free; leave out --arrivals, --rate and --rates"
        )
    return _drawn(options, [math.inf], options.requests or options.default_requests)


def _open(options: argparse.Namespace, wanted: list[float] | None, default: list[float]) -> Traffic:
    name = options.arrivals.partition(":")[0]
    if name in LAWS_WITH_A_RATE:
        rates = default if wanted is None else wanted
        arrivals_from(options.arrivals, rates[0])  # a bad law is refused now
        return _drawn(options, rates, options.requests or options.default_requests)
    if wanted is not None:
        raise UsageError(f"--arrivals {options.arrivals} sets the rate: leave out --rate and --rates")
    if is_file(options.arrivals):
        found = read_trace(
            Path(options.arrivals), time_unit=options.time_unit, limit=options.requests, seed=options.seed
        )
        if isinstance(found, Trace):
            return _whole(options, found)
        requests = options.requests or len(found.schedule)
        return _drawn(options, [mean_rate(found.schedule[:requests])], requests)
    law = arrivals_from(options.arrivals, 1.0)
    return _drawn(options, [law.rate], options.requests or options.default_requests)


def _drawn(options: argparse.Namespace, rates: list[float], requests: int) -> Traffic:
    text, at_once = options.arrivals, options.closed_loop is not None
    workload = Workload(
        options.prompt or REFERENCE.prompt,
        options.output or REFERENCE.output,
        requests,
        options.seed,
        lambda rate: arrivals_from("poisson" if at_once else text, rate),
        options.shared_prefix,
    )
    workload.trace(rates[0])  # too few times to replay are found now
    extra = options.shared_prefix.tokens if options.shared_prefix else 0
    return Traffic(workload, rates, requests, extra + workload.prompt.high + workload.output.high)


def _whole(options: argparse.Namespace, trace: Trace) -> Traffic:
    """A file that says everything."""
    if options.requests and options.requests > len(trace.requests):
        raise UsageError(f"--requests {options.requests}: the trace holds {len(trace.requests)}")
    for name in ("prompt", "output", "shared_prefix"):
        if getattr(options, name) is not None:
            raise UsageError(f"--{name.replace('_', '-')}: the trace file says what is asked; leave it out")
    fixed = FixedTrace(trace, Workload(seed=options.seed).warmup)
    longest = max(len(r.prompt_ids) + r.output_tokens for r in trace.requests)
    return Traffic(fixed, [fixed.rate], len(trace.requests), longest)
