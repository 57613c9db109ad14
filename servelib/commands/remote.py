"""The options that aim a run at a server over HTTP instead of an engine in this process."""

from __future__ import annotations

import argparse
import json
from contextlib import suppress
from typing import TYPE_CHECKING, Any, NoReturn

from servelib.commands.options import ENGINE_OPTIONS, UsageError, positive, short
from servelib.errors import InvalidRequestError
from servelib.harness.trace import TraceSource

if TYPE_CHECKING:
    from servelib.harness.remote import Remote

OWN = ("endpoint", "model", "timeout", "api_key_env", "extra_body")  # mean nothing without --url
NOT_OURS = ("engine", *ENGINE_OPTIONS, "threads", "kernels")  # and these nothing with it
TIMEOUT = 600.0


def add_remote(parser: argparse.ArgumentParser) -> None:
    """The options of a run over HTTP."""
    group = parser.add_argument_group("over HTTP")
    add = group.add_argument
    add("--url", metavar="URL", help="measure the OpenAI-compatible server there, no engine of ours")
    add("--endpoint", choices=["completions", "chat"], help="which to ask (default: completions)")
    add("--model", metavar="NAME", help="the server's name for its model")
    add("--timeout", type=positive, metavar="S", help="for a request (default: 600 s)")
    add("--api-key-env", metavar="NAME", help="the environment variable that holds the key")
    add(
        "--extra-body", type=_json_object, metavar="JSON", help="fields for every request; null takes one out"
    )


def remote_system(
    options: argparse.Namespace, workload: TraceSource, rate: float, callers: int | None = None
) -> Remote | None:
    """The server to measure, found fit by one request; None without ``--url``. Raises ``UsageError``."""
    if options.url is None:
        for name in OWN:
            if getattr(options, name) is not None:
                raise UsageError(f"--{name.replace('_', '-')} needs --url")
        return None
    if options.clock == "virtual":
        raise UsageError("--url needs --clock wall: a server elsewhere takes the time it takes")
    if options.cost is not None:
        raise UsageError("--cost needs --clock virtual, and --url the wall clock")
    for name in NOT_OURS:
        if getattr(options, name) is not None:
            raise UsageError(f"--{name.replace('_', '-')} is of our own engines: leave it out with --url")
    if options.model is None:
        raise UsageError("--url needs --model NAME: the server's name for its model")
    try:
        from servelib.harness.probe import TargetError, probe  # here: other runs need no HTTP client
        from servelib.harness.remote import Remote
        from servelib.harness.target import Target
    except ImportError as error:
        raise UsageError(f"--url needs `pip install 'servelib[server]'` ({error})") from None
    try:
        target = Target(
            options.url,
            options.model,
            options.endpoint or "completions",
            timeout=options.timeout or TIMEOUT,
            idle_timeout=options.timeout or TIMEOUT,
            api_key_env=options.api_key_env,
            extra_body=options.extra_body or {},
        )
        found = probe(target, workload.trace(rate).requests[0])
    except (InvalidRequestError, TargetError) as error:
        raise UsageError(str(error)) from None
    _allow_connections()
    return Remote(found, callers=callers)


def _allow_connections() -> None:
    """Lift this process's limit on open connections as far as it may; Windows has none."""
    try:
        import resource
    except ImportError:
        return
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    with suppress(OSError, ValueError):
        resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))


def _json_object(text: str) -> dict[str, Any]:
    try:
        found = json.loads(text, parse_constant=_no_constant)
    except (ValueError, RecursionError):
        found = None
    if not isinstance(found, dict):
        raise argparse.ArgumentTypeError(
            f"got {short(text)}, must be a JSON object such as '{{\"top_k\": 1}}'"
        )
    return found


def _no_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is Python's, not JSON's")
