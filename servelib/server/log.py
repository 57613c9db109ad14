"""One line of JSON for each call, on the logger ``servelib.server.log``; nothing of what was said in it."""

from __future__ import annotations

import json
import logging
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from servelib.clock import Clock
from servelib.server.ledger import Life

logger = logging.getLogger(__name__)

CALL = "servelib.call"  # scope key: what is known of an HTTP request
CLIENT_GONE = 499  # nginx's word for a caller who left before there was a status
_LOGGERS = ("servelib", "uvicorn", "asyncio")
_QUIET = frozenset({"/health", "/ready", "/metrics"})  # asked all day long by machines: at level debug


@dataclass(slots=True)
class Call:
    """What is known of one HTTP request while it is served."""

    arrived: float
    request_id: str | None = None
    status: int | None = None
    lives: tuple[Life, ...] = ()  # its choices, once they are admitted


class LogCalls:
    """Notes when a call arrived, before anything is read of its body, and writes a line when it is over.

    ``prompt_of`` turns a prompt's token ids into text for the line; without it there is none.
    """

    def __init__(
        self, app: ASGIApp, clock: Clock, prompt_of: Callable[[tuple[int, ...]], str] | None = None
    ) -> None:
        self._app = app
        self._clock = clock
        self._prompt_of = prompt_of

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass on, then write (the ASGI side of a middleware)."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        scope[CALL] = call = Call(self._clock.now())

        async def noted(message: Message) -> None:
            if message["type"] == "http.response.start":
                call.status = message["status"]
            await send(message)

        try:
            await self._app(scope, receive, noted)
        finally:
            level = logging.DEBUG if scope["path"] in _QUIET else logging.INFO
            if logger.isEnabledFor(level):
                fields = self._fields(call)
                logger.log(level, "request", extra={"fields": {"route": scope["path"][:200], **fields}})

    def _fields(self, call: Call) -> dict[str, Any]:
        fields: dict[str, Any] = {"id": call.request_id, "status": call.status or CLIENT_GONE}
        lives = call.lives
        if lives:
            firsts = [life.first for life in lives if life.first is not None]
            begans = [life.began for life in lives if life.began is not None]
            prompts = {id(life.request.prompt_ids): life.request.prompt_ids for life in lives}
            fields |= {
                "reason": ",".join(
                    sorted({life.outcome.value for life in lives if life.outcome is not None})
                ),
                "choices": len(lives),
                "prompt_tokens": sum(map(len, prompts.values())),
                "generated_tokens": sum(life.generated for life in lives),
                "queue_seconds": _since(call.arrived, min(begans, default=None)),
                "ttft_seconds": _since(call.arrived, min(firsts, default=None)),
            }
            if self._prompt_of is not None:
                fields["prompts"] = [self._prompt_of(ids) for ids in prompts.values()]
        return fields | {"e2e_seconds": _since(call.arrived, self._clock.now())}


def _since(start: float, end: float | None) -> float | None:
    return None if end is None else round(max(0.0, end - start), 6)


class JsonFormatter(logging.Formatter):
    """A record as one line of JSON: time (UTC), level, message, and the fields it carries."""

    default_time_format = "%Y-%m-%dT%H:%M:%S"
    default_msec_format = "%s.%03dZ"

    def __init__(self) -> None:
        super().__init__()
        self.converter = time.gmtime

    def format(self, record: logging.LogRecord) -> str:
        """One line, whatever the message holds."""
        line = {
            "time": self.formatTime(record),
            "level": record.levelname.lower(),
            "message": record.getMessage(),
        }
        line |= getattr(record, "fields", {})
        if record.exc_info:
            line["traceback"] = self.formatException(record.exc_info)
        return json.dumps(line)


@dataclass(slots=True)
class LogHandler:
    """Sends the log to stderr as JSON lines, for the length of a ``with`` block.

    That of this package from ``level`` up (a name such as ``info``; ``off`` says nothing at all), and what
    the web server under it reports as an error.
    """

    level: str
    _handler: logging.Handler = field(default_factory=logging.NullHandler)

    def __enter__(self) -> None:
        if self.level != "off":
            self._handler = logging.StreamHandler(sys.stderr)
            self._handler.setFormatter(JsonFormatter())
        for name in _LOGGERS:
            part = logging.getLogger(name)
            part.addHandler(self._handler)
            part.propagate = False
        package = logging.getLogger("servelib")
        package.setLevel(logging.CRITICAL + 1 if self.level == "off" else self.level.upper())

    def __exit__(self, *_: object) -> None:
        for name in _LOGGERS:
            part = logging.getLogger(name)
            part.removeHandler(self._handler)
            part.propagate = True
        logging.getLogger("servelib").setLevel(logging.NOTSET)
