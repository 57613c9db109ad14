"""What a run over HTTP is aimed at, and what is sent there."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, Protocol
from urllib.parse import urlsplit

from servelib.errors import InvalidRequestError, check_float
from servelib.harness.trace import TraceRequest

Endpoint = Literal["completions", "chat"]
PATHS: dict[str, str] = {"completions": "completions", "chat": "chat/completions"}


class TextCodec(Protocol):
    """A tokenizer: needed for prompts that are not printable ASCII, and for servers without ``usage``."""

    def encode(self, text: str) -> Sequence[int]:
        """Token ids of a text."""
        ...

    def decode(self, ids: Sequence[int]) -> str:
        """The text of token ids."""
        ...


@dataclass(frozen=True, slots=True)
class Target:
    """An OpenAI-compatible server, and how to talk to it.

    ``url`` is its root, the root of its API (``.../v1``), or the whole address of the endpoint.
    ``timeout`` is for a whole request, ``idle_timeout`` between two arrivals of bytes, in seconds.
    ``api_key_env`` names the environment variable that holds the key; the key itself is kept nowhere.
    ``extra_body`` is added to every request; a None in it takes a field out. ``prompt_ids`` sends token
    ids where the endpoint takes them, ``exact_length`` asks for exactly the trace's output lengths,
    ``usage`` for the token count at the end of a stream: ``probe`` turns off what a server refuses.
    Each request opens a connection of its own, and its TTFT includes that; ``keep_alive`` reuses idle
    ones, at the price that a server may close one just as it is taken. Raises ``InvalidRequestError``.
    """

    url: str
    model: str
    endpoint: Endpoint = "completions"
    timeout: float = 600.0
    idle_timeout: float = 300.0
    api_key_env: str | None = None
    extra_body: Mapping[str, Any] = field(default_factory=dict)
    prompt_ids: bool = True
    exact_length: bool = True
    usage: bool = True
    keep_alive: bool = False

    def __post_init__(self) -> None:
        check_float("timeout", self.timeout, 0.0, low_open=True)
        check_float("idle_timeout", self.idle_timeout, 0.0, low_open=True)
        if self.endpoint not in PATHS:
            raise InvalidRequestError("endpoint", self.endpoint, f"one of {', '.join(PATHS)}")
        if not self.model:
            raise InvalidRequestError("model", self.model, "the name under which the server has it")
        try:
            parts = urlsplit(self.url)
            spaced = any(c.isspace() for c in self.url)  # urlsplit takes some of them out
            known = not spaced and parts.scheme in ("http", "https") and parts.hostname
            parts.port  # noqa: B018 - raises ValueError on a bad one
        except ValueError:
            known = None
        if not known:
            raise InvalidRequestError("url", self.url, "an address such as http://127.0.0.1:8000")

    @property
    def address(self) -> str:
        """Where requests go."""
        base, path = self.url.rstrip("/"), PATHS[self.endpoint]
        if base.endswith("/completions"):
            return base
        return f"{base}/{path}" if urlsplit(base).path else f"{base}/v1/{path}"

    def headers(self) -> dict[str, str]:
        """The headers of every request. Raises ``InvalidRequestError`` when the key is not there."""
        found = {"Content-Type": "application/json", "Accept": "text/event-stream"}
        if self.api_key_env is not None:
            key = os.environ.get(self.api_key_env, "").strip()
            if not key:
                limit = "the name of an environment variable that holds the key; this one is not set"
                raise InvalidRequestError("api_key_env", self.api_key_env, limit)
            found["Authorization"] = f"Bearer {key}"
        return found

    def body(self, wanted: TraceRequest, codec: TextCodec | None = None) -> bytes:
        """The JSON that asks for ``wanted``, greedy and streamed.

        Raises ``InvalidRequestError`` for a prompt that cannot be spelled without a codec.
        """
        content: dict[str, Any] = {"model": self.model}
        if self.endpoint == "chat":
            content["messages"] = [{"role": "user", "content": _spelled(wanted, codec)}]
        elif self.prompt_ids:
            content["prompt"] = list(wanted.prompt_ids)
        else:
            content["prompt"] = _spelled(wanted, codec)
        content |= {"max_tokens": wanted.output_tokens, "temperature": 0.0, "stream": True}
        if self.exact_length:
            content |= {"ignore_eos": True, "min_tokens": wanted.output_tokens}
        if self.usage:
            content["stream_options"] = {"include_usage": True}
        content |= self.extra_body
        return json.dumps({name: value for name, value in content.items() if value is not None}).encode()


def _spelled(wanted: TraceRequest, codec: TextCodec | None) -> str:
    if codec is not None:
        return codec.decode(wanted.prompt_ids)
    if all(32 <= token < 127 for token in wanted.prompt_ids):
        return "".join(map(chr, wanted.prompt_ids))
    raise InvalidRequestError("prompt", wanted.request_id, "printable ASCII (32-126) without a tokenizer")
