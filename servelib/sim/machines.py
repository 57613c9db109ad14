"""Machines by their ceilings: operations a second, bytes a second, bytes. A new one is an entry of data."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from types import MappingProxyType
from typing import Any

from servelib.errors import InvalidRequestError, check_float
from servelib.sim.catalogue import named, read

REFERENCE_MACHINE = "cpu"
"""The machine on which the course was measured."""


@dataclass(frozen=True, slots=True)
class Figure:
    """One number, where it was read, and whether that was checked; an unchecked one is from memory."""

    value: float
    source: str
    checked: bool = True


@dataclass(frozen=True, slots=True)
class Machine:
    """What a machine could do at best.

    ``operations``: dense matrix products, operations a second for each number format. ``bandwidth``:
    bytes a second from memory. ``memory``: bytes. ``cache`` and ``cache_bandwidth``: of the last cache
    level, where a model is small enough to stay in it. ``together``: how many stand in one server.
    Raises ``InvalidRequestError`` unless every figure is above 0.
    """

    id: str
    name: str
    operations: Mapping[str, Figure]
    bandwidth: Figure
    memory: Figure
    cache: Figure | None = None
    cache_bandwidth: Figure | None = None
    together: int = 8

    def __post_init__(self) -> None:
        for what, figure in self.figures().items():
            check_float(f"{what} of {self.name}", figure.value, 0.0, low_open=True)

    def figures(self) -> dict[str, Figure]:
        """Every figure by name."""
        found = {f"operations, {dtype}": figure for dtype, figure in self.operations.items()}
        found |= {"bandwidth": self.bandwidth, "memory": self.memory}
        if self.cache is not None and self.cache_bandwidth is not None:
            found |= {"cache": self.cache, "cache bandwidth": self.cache_bandwidth}
        return found

    def peak(self, dtype: str) -> float:
        """Operations a second on numbers of ``dtype``. Raises as ``peak_figure``."""
        return self.peak_figure(dtype).value

    def peak_figure(self, dtype: str) -> Figure:
        """The same with its source; 16-bit formats stand in for each other.

        Raises ``InvalidRequestError`` where the machine has no such rate.
        """
        other = {"bfloat16": "float16", "float16": "bfloat16"}.get(dtype, dtype)
        figure = self.operations.get(dtype) or self.operations.get(other)
        if figure is None:
            known = f"a format that {self.name} has a rate for: {', '.join(self.operations)}"
            raise InvalidRequestError("dtype", dtype, known)
        return figure

    def bytes_per_second(self, held: float) -> float:
        """Bandwidth for a model of ``held`` bytes: the cache's if it stays in there, else memory's."""
        if self.cache is None or self.cache_bandwidth is None or held > self.cache.value:
            return self.bandwidth.value
        return self.cache_bandwidth.value

    def balance(self, dtype: str) -> float:
        """Operations a byte at which computing takes as long as moving: the roofline's corner."""
        return self.peak(dtype) / self.bandwidth.value


@cache
def machines() -> Mapping[str, Machine]:
    """Every machine of the catalogue by id."""
    content = read("machines.json")
    found = (_machine(entry, content["sources"]) for entry in content["machines"])
    return MappingProxyType({machine.id: machine for machine in found})


def machine_named(name: str) -> Machine:
    """The machine called ``name``. Raises ``InvalidRequestError`` that lists the known ones."""
    return named("machine", name, machines())


def devices_for(needed: float, machine: Machine) -> int:
    """The fewest devices, a power of two, whose memories hold ``needed`` bytes together.

    Raises ``InvalidRequestError`` when all that stand in one server do not.
    """
    devices = 1
    while devices * machine.memory.value < needed:
        devices *= 2
        if devices > machine.together:
            room = f"{machine.together} x {machine.memory.value / 1e9:.4g} GB of {machine.name}"
            limit = f"a model that fits {room}: take another machine, or say how many devices"
            raise InvalidRequestError("model", f"{math.ceil(needed / 1e9)} GB", limit)
    return devices


def _machine(entry: Mapping[str, Any], sources: Mapping[str, str]) -> Machine:
    def figure(found: Mapping[str, Any]) -> Figure:
        return Figure(float(found["value"]), sources[found["source"]], bool(found["checked"]))

    extra = {name: figure(entry[name]) for name in ("cache", "cache_bandwidth") if name in entry}
    operations = {dtype: figure(found) for dtype, found in entry["operations"].items()}
    return Machine(
        entry["id"],
        entry["name"],
        MappingProxyType(operations),
        figure(entry["bandwidth"]),
        figure(entry["memory"]),
        together=int(entry.get("together", 8)),
        **extra,
    )
