"""Servers for tests: scripted models, so that every byte that goes out is known beforehand."""

from __future__ import annotations

import json
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import openai

from servelib.engine.naive import NaiveEngine
from servelib.model.scripted import ScriptedModel
from servelib.request import RequestState
from servelib.server.run import BackgroundServer
from servelib.server.settings import ServerSettings
from servelib.spans import SpanLog

EOS = 257


def ids(text: str, *, end: bool = True) -> list[int]:
    """The tokens of a text, and the end token."""
    return [*text.encode(), *([EOS] if end else [])]


class Served:
    """A background server and ways to talk to it."""

    def __init__(self, server: BackgroundServer, engine: NaiveEngine, log: SpanLog) -> None:
        self.server, self.engine, self.log = server, engine, log
        self.url = server.url
        self.client = openai.OpenAI(base_url=f"{server.url}/v1", api_key="none", max_retries=0, timeout=30)

    def post(self, path: str, body: object) -> tuple[int, dict]:
        """Status and JSON of a request whose body is sent as it is if it is bytes."""
        data = body if isinstance(body, bytes) else json.dumps(body).encode()
        status, raw = self.fetch(path, data)
        return status, json.loads(raw)

    def fetch(self, path: str, data: bytes | None = None, **headers: str) -> tuple[int, bytes]:
        """Status and raw body."""
        kind = {"content-type": "application/json"} if data is not None else {}
        request = urllib.request.Request(self.url + path, data, kind | headers)
        try:
            with urllib.request.urlopen(request, timeout=30) as response:
                return response.status, response.read()
        except urllib.error.HTTPError as error:
            return error.code, error.read()

    def metrics(self) -> dict[str, float]:
        """Every signal, by its name and labels as written."""
        lines = self.fetch("/metrics")[1].decode().splitlines()
        pairs = (line.rsplit(" ", 1) for line in lines if not line.startswith("#"))
        return {name: float(value) for name, value in pairs}

    def health(self) -> int:
        """The status of ``/health``."""
        return self.fetch("/health")[0]


@contextmanager
def serving(script: Sequence[int] | Callable[[RequestState], int], **limits: Any) -> Iterator[Served]:
    """A server whose model follows ``script``, with settings other than the defaults."""
    log = SpanLog()
    engine = NaiveEngine(ScriptedModel(script), use_cache=True, spans=log)
    with BackgroundServer(engine, spans=log, settings=ServerSettings(**limits)) as server:
        served = Served(server, engine, log)
        try:
            yield served
        finally:
            served.client.close()


def eventually(holds: Callable[[], bool], *, within: float = 20.0) -> bool:
    """Wait until ``holds()``; False only after a time that no healthy machine needs."""
    deadline = time.monotonic() + within
    while not holds():
        if time.monotonic() > deadline:
            return False
        time.sleep(0.005)
    return True


class Gate:
    """A script that gives ``free`` tokens at once and then waits to be opened before each next one.

    ``reached`` is set when the model waits. Every wait has a limit, so that a failing test ends.
    """

    def __init__(self, *, free: int = 0, token: int = ord("a")) -> None:
        self.opened = threading.Event()
        self.reached = threading.Event()
        self._free = free
        self._token = token

    def __call__(self, state: RequestState) -> int:
        if len(state.output_ids) >= self._free and not self.opened.is_set():
            self.reached.set()
            self.opened.wait(20)
        return self._token


TEXT = "Héllo, wörld! 👩‍👩‍👧 e\u0301 END tail"
CHAT = {"model": "scripted", "messages": [{"role": "user", "content": "hi"}]}
COMPLETION = {"model": "scripted", "prompt": "hi"}
