"""One request before the run, so that what is wrong with a target is found before anything is measured."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from servelib.clock import WallClock
from servelib.harness.exchange import exchange, open_session
from servelib.harness.http import run_async
from servelib.harness.openai_stream import StreamReader
from servelib.harness.records import Outcome
from servelib.harness.target import Target, TextCodec
from servelib.harness.trace import TraceRequest

ARGUABLE = ("HTTP 400", "HTTP 422")  # about what was asked; other refusals are about who asked, or where


class TargetError(ValueError):
    """The target cannot be measured; the message is one line that says why and what to look at."""


def probe(target: Target, wanted: TraceRequest, codec: TextCodec | None = None) -> Target:
    """Ask for one token of ``wanted``, and return the target with what the server takes.

    Prompts as token ids, fields for exact output lengths, and ``usage`` are given up one by one where
    the server refuses a request (400 or 422) that has them. Raises ``TargetError`` when no request
    succeeds, ``InvalidRequestError`` for a key or a prompt that is not there.
    """
    asked = replace(wanted, output_tokens=1)
    said = ""
    for attempt in _attempts(target):
        outcome, error = _try(attempt, asked, codec)
        if outcome is Outcome.OK:
            return attempt
        said = error or outcome.value
        if outcome is not Outcome.REFUSED or not said.startswith(ARGUABLE):
            break
    hint = ""
    if said.startswith(("HTTP 404", "HTTP 405")):
        hint = f"; is it the right --url, --endpoint ({target.endpoint}) and --model ({target.model})?"
    elif said.startswith(("HTTP 401", "HTTP 403")):
        hint = "; --api-key-env names the variable with the key"
    raise TargetError(f"{target.address}: {said}{hint}")


def _attempts(target: Target) -> list[Target]:
    """The target as it is, then with ever less: each once."""
    found = [target]
    for fields in (
        ("exact_length",),
        ("prompt_ids",),
        ("exact_length", "prompt_ids"),
        ("exact_length", "prompt_ids", "usage"),
    ):
        less: dict[str, Any] = dict.fromkeys(fields, False)
        given_up = replace(target, **less)
        if given_up not in found and not (target.endpoint == "chat" and fields == ("prompt_ids",)):
            found.append(given_up)
    return found


def _try(target: Target, asked: TraceRequest, codec: TextCodec | None) -> tuple[Outcome, str | None]:
    body, clock = target.body(asked, codec), WallClock()
    found: list[tuple[Outcome, str | None]] = []

    async def ask(_: object) -> None:
        async with open_session(target, clock.now) as session:
            found.append(await exchange(session, target, body, StreamReader(), clock.now))

    run_async(ask)
    return found[0]
