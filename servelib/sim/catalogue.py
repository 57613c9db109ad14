"""The catalogue's files: one entry a machine or model, every figure with its source."""

from __future__ import annotations

import json
from collections.abc import Mapping
from importlib.resources import files
from typing import Any, TypeVar

from servelib.errors import InvalidRequestError

T = TypeVar("T")


def read(name: str) -> dict[str, Any]:
    """A data file that lies beside this module."""
    found: dict[str, Any] = json.loads((files("servelib.sim") / name).read_text(encoding="utf-8"))
    return found


def named(kind: str, name: str, known: Mapping[str, T]) -> T:
    """The entry called ``name``. Raises ``InvalidRequestError`` that lists the known ones."""
    if name not in known:
        raise InvalidRequestError(kind, name, f"one of {', '.join(known)}")
    return known[name]
