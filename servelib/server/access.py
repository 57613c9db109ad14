"""Who may call, and how much they may send: decided before a route sees the request."""

from __future__ import annotations

import hmac

from fastapi import FastAPI
from starlette.exceptions import HTTPException
from starlette.middleware.cors import CORSMiddleware
from starlette.requests import Request
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from servelib.server.errors import answer_error
from servelib.server.settings import ServerSettings

OPEN_ROUTES = frozenset({"/health"})
"""A probe that carries no secret must still learn that the process is alive; nothing else is told."""


class MissingKeyError(HTTPException):
    """No API key, or a wrong one."""

    def __init__(self) -> None:
        detail = "no valid API key: send this server's key in the header 'Authorization: Bearer KEY'"
        super().__init__(401, detail, {"www-authenticate": "Bearer"})


class RequireKey:
    """Lets pass who knows the key. The time of the comparison says nothing about it."""

    def __init__(self, app: ASGIApp, key: str) -> None:
        self._app = app
        self._key = key.encode()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Check, then pass on (the ASGI side of a middleware)."""
        if scope["type"] == "http" and scope["path"] not in OPEN_ROUTES and not self._knows(scope):
            refusal = await answer_error(Request(scope), MissingKeyError())
            await refusal(scope, receive, send)
        else:
            await self._app(scope, receive, send)

    def _knows(self, scope: Scope) -> bool:
        given = [value for name, value in scope["headers"] if name == b"authorization"]
        if len(given) != 1:
            return False
        scheme, _, key = given[0].partition(b" ")
        return scheme.lower() == b"bearer" and hmac.compare_digest(key.strip(), self._key)


class LimitBody:
    """Refuses a body of more than ``limit`` bytes with 413, declared or not, before it is read whole."""

    def __init__(self, app: ASGIApp, limit: int) -> None:
        self._app = app
        self._limit = limit

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Count while it is read (the ASGI side of a middleware)."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        declared = next((value for name, value in scope["headers"] if name == b"content-length"), b"0")
        size = 0

        async def counted() -> Message:
            nonlocal size
            message = await receive()
            size += len(message.get("body", b""))
            if size > self._limit:
                raise self._too_large()
            return message

        if int(declared) > self._limit:
            refusal = await answer_error(Request(scope), self._too_large())
            await refusal(scope, receive, send)
        else:
            await self._app(scope, counted, send)

    def _too_large(self) -> HTTPException:
        return HTTPException(413, f"the body is too large: this server takes at most {self._limit} bytes")


def install_access(app: FastAPI, settings: ServerSettings) -> None:
    """Put the checks in front of every route: from outside in, origins, key, size."""
    app.add_middleware(LimitBody, limit=settings.max_body)
    if settings.api_key is not None:
        app.add_middleware(RequireKey, key=settings.api_key)
    if settings.allow_origins:  # outside the key: a browser asks about an origin without one
        app.add_middleware(
            CORSMiddleware,
            allow_origins=list(settings.allow_origins),
            allow_methods=["GET", "POST"],
            allow_headers=["*"],  # OpenAI's own client sends a dozen about itself
            expose_headers=["retry-after"],
        )
