"""Every limit of the server, with its default, in one place."""

from __future__ import annotations

import re
from dataclasses import dataclass, field

from servelib.errors import InvalidRequestError, check_float, check_int

MIB = 1024 * 1024
_ORIGIN = re.compile(r"https?://[^/\s?#@A-Z]+")  # as browsers write it: anything else would never match


@dataclass(frozen=True, slots=True)
class ServerSettings:
    """What the server allows, to whom, and how long it waits. Times in seconds, sizes in bytes.

    ``max_waiting``: requests that may wait for their first token (each choice counts); one more is
    refused with 429. ``request_timeout``: from arrival to the last token; a reader who is behind by then
    is dropped within another ``write_timeout``. ``head_timeout`` and ``body_timeout``: how long a sender
    may take over each. ``write_timeout``: how long a reader may take nothing while there is something
    for it. ``send_buffer``: what the system may hold for a reader (it
    takes twice that). ``keep_alive``: how long a connection may idle between two requests. ``grace``: how
    long requests in flight may go on after SIGTERM. ``api_key``: asked of everyone, on every route but
    ``/health``. ``allow_origins``: web pages whose scripts may call.
    ``log_prompts``: put prompts into the log.

    Raises ``InvalidRequestError``, with the field's name, on a value out of range.
    """

    max_waiting: int = 256
    request_timeout: float = 600.0
    head_timeout: float = 10.0
    body_timeout: float = 30.0
    write_timeout: float = 30.0
    keep_alive: float = 30.0
    grace: float = 10.0
    max_body: int = 4 * MIB
    max_head: int = 32 * 1024
    max_headers: int = 100
    send_buffer: int = 256 * 1024
    api_key: str | None = field(default=None, repr=False)  # no traceback and no log may show it
    allow_origins: tuple[str, ...] = ()
    log_prompts: bool = False

    def __post_init__(self) -> None:
        for name in ("max_waiting", "max_body", "max_head", "max_headers", "send_buffer"):
            check_int(name, getattr(self, name), 1)
        for name in ("request_timeout", "head_timeout", "body_timeout", "write_timeout", "keep_alive"):
            check_float(name, getattr(self, name), 0.0, low_open=True)
        check_float("grace", self.grace, 0.0)
        if self.api_key is not None and not (self.api_key.isascii() and self.api_key.isprintable()):
            raise InvalidRequestError("api_key", "(hidden)", "printable ASCII: it travels in a header")
        if self.api_key is not None and not self.api_key.strip():
            raise InvalidRequestError("api_key", "(hidden)", "not empty")
        if self.api_key is not None and self.api_key != self.api_key.strip():
            raise InvalidRequestError("api_key", "(hidden)", "without spaces around it: a header loses them")
        for origin in self.allow_origins:
            if origin != "*" and not _ORIGIN.fullmatch(origin):
                limit = "an origin such as https://example.org or http://localhost:3000 (no path), or *"
                raise InvalidRequestError("allow_origins", origin, limit)
