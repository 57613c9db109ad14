"""Every failure in OpenAI's shape: ``{"error": {"message", "type", "param", "code"}}``.

What the caller can mend is a 4xx that names the parameter; what they cannot is a 5xx that says so and
shows no internals.
"""

from __future__ import annotations

import json
import logging
from typing import Any

from fastapi import FastAPI, Request, Response
from fastapi.exceptions import RequestValidationError
from pydantic import BaseModel
from starlette.exceptions import HTTPException

from servelib.errors import InvalidRequestError
from servelib.server.ledger import QueueFullError, RequestTimeoutError
from servelib.server.loop import EngineStoppedError
from servelib.server.stream import GenerationError

logger = logging.getLogger(__name__)

MOST_ECHOED = 80  # characters of a name that the caller made up, in an answer that says it is unknown


class ErrorDetail(BaseModel):
    """What went wrong; ``param`` names the field at fault where there is one."""

    message: str
    type: str
    param: str | None
    code: str | None


class ErrorBody(BaseModel):
    """The body of every answer that is not a 2xx."""

    error: ErrorDetail


RESPONSES: dict[int | str, dict[str, Any]] = {
    "4XX": {"model": ErrorBody, "description": "The request cannot be served as it is"},
    "5XX": {"model": ErrorBody, "description": "The server failed, or is going down"},
}
"""For the OpenAPI description of a route."""


def answers(whole: type[BaseModel]) -> dict[int | str, dict[str, Any]]:
    """For the OpenAPI description of a route that answers whole, or as a stream of events."""
    stream = {"text/event-stream": {"schema": {"type": "string"}}}
    return {200: {"model": whole, "content": stream}, **RESPONSES}


class UnknownModelError(LookupError):
    """The caller named a model that is not served here."""

    def __init__(self, asked: str, served: str) -> None:
        super().__init__(f"model: got {asked[:80]!r}, must be {served!r}, the one served here")


class BodyError(HTTPException):
    """A body that cannot be read at all; ``param`` where it is still clear which field it is about."""

    def __init__(self, message: str, param: str | None = None) -> None:
        super().__init__(400, message)
        self.param = param


def error_body(error: Exception) -> tuple[int, bytes]:
    """The status and the JSON body that tell a caller about ``error``."""
    status, kind, param, code = 500, "server_error", None, None
    message = "the server failed on this request; its log has the cause"
    if isinstance(error, InvalidRequestError):
        status, kind, param, code = 400, "invalid_request_error", error.field, "invalid_value"
        message = str(error)
    elif isinstance(error, RequestValidationError):
        status, kind, code = 400, "invalid_request_error", "invalid_value"
        param, message = _explain(error.errors())
    elif isinstance(error, UnknownModelError):
        status, kind, param, code = 404, "invalid_request_error", "model", "model_not_found"
        message = str(error)
    elif isinstance(error, BodyError):
        status, kind, param, code = 400, "invalid_request_error", error.param, "invalid_value"
        message = str(error.detail)
    elif isinstance(error, HTTPException):
        status, message = error.status_code, str(error.detail)
        kind = "invalid_request_error" if status < 500 else "server_error"
        code = "invalid_api_key" if status == 401 else None
    elif isinstance(error, QueueFullError):
        status, kind, code, message = 429, "rate_limit_error", "rate_limit_exceeded", str(error)
    elif isinstance(error, RequestTimeoutError):
        # Not 408: that says the caller was slow, and clients send such a request again.
        status, code, message = 504, "timeout", str(error)
    elif isinstance(error, EngineStoppedError):
        status, message = 503, str(error)
    elif isinstance(error, GenerationError):
        message = "the engine failed on this request; the server's log has the cause"
    content = {"message": message, "type": kind, "param": param and _short(param), "code": code}
    # ASCII, because a caller's own words may hold what UTF-8 cannot.
    return status, json.dumps({"error": content}, ensure_ascii=True).encode()


async def answer_error(request: Request, error: Exception) -> Response:
    """The response for ``error``."""
    if isinstance(error, GenerationError):
        logger.error("%s %s: %s", request.method, request.url.path, error)
    status, body = error_body(error)
    headers = dict(error.headers or {}) if isinstance(error, HTTPException) else {}
    if isinstance(error, QueueFullError):
        headers["retry-after"] = str(error.retry_after)
    return Response(body, status, headers, media_type="application/json")


def install_error_handlers(app: FastAPI) -> None:
    """Answer every exception with ``answer_error``."""
    for kind in (
        InvalidRequestError, RequestValidationError, UnknownModelError, HTTPException,
        EngineStoppedError, QueueFullError, RequestTimeoutError, GenerationError, Exception,
    ):  # fmt: skip
        app.add_exception_handler(kind, answer_error)


def _explain(problems: Any) -> tuple[str | None, str]:
    """The parameter at fault and what is wrong with it, from pydantic's list of problems."""
    first = problems[0]
    path = first["loc"][1:]
    if not path:
        if isinstance(first.get("input"), bytes):  # FastAPI read no JSON, so it was not called JSON
            return None, "the body must come with Content-Type: application/json"
        return None, "the body must be a JSON object"
    param = str(path[0])
    if first["type"] == "extra_forbidden":
        where = f" in {param}" if len(path) > 1 else ""
        return param, f"{_short(str(path[-1]))}: not a field that this server knows{where}; remove it"
    # A field of several types has one problem for each; the caller needs them all.
    wants = [problem["msg"] for problem in problems if problem["loc"][1:2] == path[:1]]
    wants = [want[0].lower() + want[1:] for want in dict.fromkeys(wants)]
    place = ".".join(str(part) for part in path) if len(path) > 1 and len(wants) == 1 else param
    return param, f"{place}: {', or '.join(wants)}"


def _short(name: str) -> str:
    return name if len(name) <= MOST_ECHOED else name[: MOST_ECHOED - 3] + "..."
