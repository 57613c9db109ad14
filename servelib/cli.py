"""The command line: ``servelib serve | bench | sweep | compare | capacity | simulate | calibrate``."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from contextlib import suppress

from servelib import __version__
from servelib.commands.bench import EXIT_BROKEN, EXIT_INTERRUPTED, add_bench, add_sweep
from servelib.commands.calibrate import add_calibrate
from servelib.commands.capacity import add_capacity
from servelib.commands.compare import add_compare
from servelib.commands.options import Parser, UsageError
from servelib.commands.serve import add_serve
from servelib.commands.simulate import add_simulate

DESCRIPTION = """\
A language-model inference server, small enough to read and honest enough to measure.

start here:
  servelib bench --clock virtual       predict a server under load, in a moment
  servelib bench                       measure it
  servelib serve                       talk to it over HTTP
  servelib simulate --machine h100 --model llama3-8b    a machine and a model you do not have
"""


def parser() -> Parser:
    """The parser of every subcommand."""
    top = Parser(prog="servelib", description=DESCRIPTION)
    top.add_argument("--version", action="version", version=f"servelib {__version__}")
    commands = top.add_subparsers(metavar="COMMAND", required=True)
    for add in (add_serve, add_bench, add_sweep, add_compare, add_capacity, add_simulate, add_calibrate):
        add(commands)
    return top


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command and return its exit code: 2 bad arguments, 1 a run broke, 130 interrupted."""
    options = parser().parse_args(argv)
    command: Parser = options.parser
    try:
        return int(options.run(options))
    except UsageError as error:
        command.error(str(error))
    except KeyboardInterrupt:
        return EXIT_INTERRUPTED
    except BrokenPipeError:  # nobody reads us any more; files are written before anything is printed
        for stream in (sys.stdout, sys.stderr):
            with suppress(OSError, ValueError):
                os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())
        return EXIT_BROKEN


if __name__ == "__main__":
    sys.exit(main())
