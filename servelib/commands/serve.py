"""``servelib serve``: the reference model behind an OpenAI-compatible HTTP server."""

from __future__ import annotations

import argparse
import math
import os
import sys
from dataclasses import fields
from pathlib import Path

from servelib.clock import WallClock
from servelib.commands.model import (
    add_kernels,
    add_model,
    add_threads,
    check_kernels,
    chosen_model,
    chosen_text,
)
from servelib.commands.options import Parser, UsageError, add_engine, engine_options, integer, positive, short
from servelib.engine.protocol import Engine
from servelib.engine.registry import make_engine
from servelib.errors import InvalidRequestError
from servelib.server.settings import MIB, ServerSettings

HELP = """\
Serve the reference model over HTTP, in OpenAI's format.

example:
  servelib serve --port 8000
  servelib serve --model ./my-llama --threads 4       a real checkpoint, its tokenizer and its template
  curl http://127.0.0.1:8000/v1/completions -H 'content-type: application/json' \\
       -d '{"model": "tinygpt", "prompt": "Hello", "max_tokens": 16}'

what to ask it:
  /v1/completions, /v1/chat/completions, /v1/models   OpenAI's API
  /health    200 while the engine lives, 503 with the reason when not; needs no key
  /ready     200 when a request would be taken; 503 when not, and from the first signal on
  /metrics   signals for Prometheus

how it ends:
  On SIGTERM or Ctrl-C it takes no new request; those in flight have --grace seconds, then the rest end
  with an error event. A second signal ends the wait. Exit code 0. A step of the engine that does not end
  is left behind after 5 seconds.
"""
EPILOG = """\
what a caller is told:
  401 no valid key, 408 sent too slowly, 413 body too large, 429 queue full (Retry-After says when to try
  again), 431 head too large, 503 shutting down or dead, 504 not done in time. All in OpenAI's shape,
  before any stream begins; later it is an error event in the stream. Whoever hangs up, or stops sending
  (a half-closed connection), is aborted: nothing is computed for nobody.
"""
KEY_VARIABLE = "SERVELIB_API_KEY"
LOG_LEVELS = ("debug", "info", "warning", "error", "off")
_DEFAULT = ServerSettings()


def add_serve(commands: argparse._SubParsersAction[Parser]) -> None:
    """Add ``serve``."""
    parser = commands.add_parser("serve", help="serve over HTTP", description=HELP, epilog=EPILOG)
    add_engine(parser, default="continuous")
    parser.add_argument(
        "--host",
        default="127.0.0.1",
        help="address to listen on (default: %(default)s, this machine alone; for others set a key)",
    )
    parser.add_argument(
        "--port", type=integer(0, 65535), default=8000, help="0 takes a free one (default: %(default)s)"
    )
    add_threads(parser)
    add_kernels(parser)
    add_model(parser)
    _add_access(parser)
    _add_overload(parser)
    _add_log(parser)
    parser.set_defaults(parser=parser, run=_run)


def _add_access(parser: Parser) -> None:
    group = parser.add_argument_group("access")
    group.add_argument(
        "--api-key",
        metavar="KEY",
        help=f"ask for 'Authorization: Bearer KEY' on every route but /health (default: ${KEY_VARIABLE}, "
        "which other users of this machine cannot see, or none)",
    )
    group.add_argument(
        "--allow-origin",
        dest="allow_origins",
        metavar="URL",
        action="append",
        default=[],
        help="let scripts of web pages from URL call, such as http://localhost:3000; repeatable",
    )


def _add_overload(parser: Parser) -> None:
    group = parser.add_argument_group("limits (seconds, unless they say otherwise)")
    for option, unit, text in (
        ("max-waiting", "N", "requests that may wait for their first token; one more is refused with 429"),
        ("max-body", "BYTES", "largest body of a request"),
        ("max-head", "BYTES", "largest head of a request"),
    ):
        name = option.replace("-", "_")
        group.add_argument(
            f"--{option}",
            type=integer(1, 1024 * MIB),
            default=getattr(_DEFAULT, name),
            metavar=unit,
            help=f"{text} (default: %(default)s)",
        )
    for option, text in (
        ("request-timeout", "from the arrival of a request to its last token, and for a reader to keep up"),
        ("head-timeout", "for a head to arrive"),
        ("body-timeout", "for a body to arrive"),
        ("write-timeout", "in which a reader must take something of what is written to it"),
        ("keep-alive", "that a connection may idle between two requests"),
    ):
        group.add_argument(
            f"--{option}",
            type=positive,
            default=getattr(_DEFAULT, option.replace("-", "_")),
            metavar="S",
            help=f"{text} (default: %(default)g)",
        )
    group.add_argument(
        "--grace",
        type=_seconds,
        default=_DEFAULT.grace,
        metavar="S",
        help="for requests in flight after the first signal; 0 ends them at once (default: %(default)g)",
    )


def _add_log(parser: Parser) -> None:
    group = parser.add_argument_group("log (stderr, one line of JSON for each call)")
    group.add_argument(
        "--log-level", choices=LOG_LEVELS, default="info", help="least that is logged (default: %(default)s)"
    )
    group.add_argument(
        "--log-prompts",
        action="store_true",
        help="put prompts into the log (default: nothing of what is said)",
    )


def _run(options: argparse.Namespace) -> int:
    # Imported here, so that the other commands need no web framework.
    from servelib.server.log import LogHandler
    from servelib.server.run import BindError, serve

    settings = _settings(options)
    if settings.api_key is None and options.host not in ("127.0.0.1", "::1", "localhost"):
        print(
            f"{options.host}: anybody who reaches this address may call; --api-key asks for a key",
            file=sys.stderr,
        )

    given = engine_options(options, options.engine)
    check_kernels(options, options.engine)

    def build() -> Engine:  # once the port is ours
        return make_engine(options.engine, chosen_model(options), WallClock(), None, **given)

    try:
        with LogHandler(options.log_level):
            tokenizer, template = chosen_text(options)
            serve(
                build,
                host=options.host,
                port=options.port,
                settings=settings,
                tokenizer=tokenizer,
                chat_template=template,
                model_id=options.model and Path(options.model).name,
            )
    except BindError as error:
        raise UsageError(str(error)) from None
    return 0


def _settings(options: argparse.Namespace) -> ServerSettings:
    typed = {
        field.name: getattr(options, field.name) for field in fields(ServerSettings) if field.name in options
    }
    # An empty variable is how a shell unsets one for a single command; an empty option is a slip.
    key = options.api_key if options.api_key is not None else os.environ.get(KEY_VARIABLE) or None
    try:
        return ServerSettings(**typed | {"api_key": key, "allow_origins": tuple(options.allow_origins)})
    except InvalidRequestError as error:
        name = "allow_origin" if error.field == "allow_origins" else error.field
        raise UsageError(f"--{name.replace('_', '-')}: {str(error).partition(': ')[2]}") from None


def _seconds(text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not (math.isfinite(value) and value >= 0):
        raise argparse.ArgumentTypeError(f"got {short(text)}, must be a finite number, 0 or above")
    return value
