"""Models by their shape: TinyGPT, and open models to count. A new one is an entry of data."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from types import MappingProxyType
from typing import Any

from servelib.model.config import REFERENCE, ModelConfig
from servelib.sim.catalogue import named, read
from servelib.sim.shape import Experts, Shape

REFERENCE_MODEL = "tinygpt"
"""The course's model."""


@cache
def models() -> Mapping[str, ModelConfig]:
    """Every model of the catalogue by id."""
    found = {entry["id"]: _shape(entry["shape"]) for entry in read("models.json")["models"]}
    return MappingProxyType({REFERENCE_MODEL: REFERENCE, **found})


def model_named(name: str) -> ModelConfig:
    """The model called ``name``. Raises ``InvalidRequestError`` that lists the known ones."""
    return named("model", name, models())


def model_sources() -> dict[str, str]:
    """Where each model's shape was read."""
    return {entry["id"]: entry["source"] for entry in read("models.json")["models"]}


def _shape(fields: Mapping[str, Any]) -> Shape:
    experts = fields.get("experts")
    return Shape(**{**fields, "experts": None if experts is None else Experts(**experts)})
