"""Reading a JSON body, with a reason in plain words for each way in which it can be none."""

from __future__ import annotations

import json
from collections.abc import Callable, Coroutine
from typing import Any

from fastapi import Request, Response
from fastapi.routing import APIRoute

from servelib.server.errors import BodyError


def read_json(raw: bytes) -> Any:
    """The value of a JSON text. Raises ``BodyError``.

    ``NaN`` and ``Infinity`` are read, so that the field that holds one can be named by whoever checks
    the fields; no field takes them.
    """
    try:
        return _decode(raw.decode("utf-8"))
    except UnicodeDecodeError as error:
        raise BodyError(f"the body is not JSON: byte {error.start} is not UTF-8") from None
    except json.JSONDecodeError as error:
        raise BodyError(f"the body is not JSON: {error.msg} at character {error.pos}") from None
    except RecursionError:
        raise BodyError("the body is nested too deeply; no field needs more than three levels") from None
    except ValueError:  # Python reads no integer of more than 4,300 digits
        raise BodyError("the body holds an integer of thousands of digits; no field takes one") from None


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    read = dict(pairs)
    try:
        "".join(read).encode()
    except UnicodeEncodeError:
        raise BodyError("a field's name holds a lone surrogate, which is no text") from None
    if len(read) < len(pairs):
        names = [name for name, _ in pairs]
        twice = next(name for name in names if names.count(name) > 1)
        raise BodyError(f"{twice[:80]}: given more than once; keep one", twice)
    return read


_decode = json.JSONDecoder(object_pairs_hook=_unique).decode


class JsonRequest(Request):
    """A request whose JSON is read by ``read_json``."""

    async def json(self) -> Any:
        """The body's value. Raises ``BodyError``."""
        coding = self.headers.get("content-encoding", "identity")
        if coding.lower() != "identity":
            raise BodyError(f"the body is encoded as {coding[:40]!r}; send it as it is, without this header")
        return read_json(await self.body())


class JsonRoute(APIRoute):
    """A route that reads its body so (FastAPI's own messages are vague about deep nesting and digits)."""

    def get_route_handler(self) -> Callable[[Request], Coroutine[Any, Any, Response]]:
        """See ``APIRoute``."""
        handle = super().get_route_handler()

        async def read_and_handle(request: Request) -> Response:
            return await handle(JsonRequest(request.scope, request.receive))

        return read_and_handle
