"""``servelib serve``: the reference model behind an OpenAI-compatible HTTP server."""

from __future__ import annotations

import argparse

from servelib.clock import WallClock
from servelib.commands.model import add_threads, reference_model
from servelib.commands.options import Parser, UsageError, add_engine, integer
from servelib.engine.protocol import Engine
from servelib.engine.registry import make_engine

HELP = """\
Serve the reference model over HTTP, in OpenAI's format.

example:
  servelib serve --engine naive --port 8000
  curl http://127.0.0.1:8000/v1/completions -H 'content-type: application/json' \\
       -d '{"model": "tinygpt", "prompt": "Hello", "max_tokens": 16}'
"""


def add_serve(commands: argparse._SubParsersAction[Parser]) -> None:
    """Add ``serve``."""
    parser = commands.add_parser("serve", help="serve over HTTP", description=HELP)
    add_engine(parser)
    parser.add_argument("--host", default="127.0.0.1", help="address to listen on (default: %(default)s)")
    parser.add_argument(
        "--port", type=integer(0, 65535), default=8000, help="0 takes a free one (default: %(default)s)"
    )
    add_threads(parser)
    parser.set_defaults(parser=parser, run=_run)


def _run(options: argparse.Namespace) -> int:
    # Imported here, so that the other commands need no web framework.
    from servelib.server.run import BindError, serve

    def build() -> Engine:  # once the port is ours
        return make_engine(options.engine, reference_model(options.threads), WallClock())

    try:
        serve(build, host=options.host, port=options.port)
    except BindError as error:
        raise UsageError(str(error)) from None
    return 0
