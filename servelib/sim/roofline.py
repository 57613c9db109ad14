"""The roofline: a step takes as long as its slower resource, part by part. Standard library only.

Williams, Waterman and Patterson, Roofline (2009): a part's time is at least its operations over the
peak rate, and at least its bytes over the bandwidth. Here it is the larger of the two, and a step is
the sum of its parts and of what it costs to launch them.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any

from servelib.errors import InvalidRequestError, check_float, check_int
from servelib.model.config import ModelConfig
from servelib.sim.cost import Sequences, attention_pairs
from servelib.sim.count import Load, Part, count_load, load_of
from servelib.sim.machines import Machine
from servelib.sim.shape import kv_bytes_per_token, weight_bytes

REMEMBERED = 1 << 16  # step times kept: a run has few kinds of step, and many of each


@dataclass(frozen=True, slots=True)
class PartTime:
    """One part of a step, with both of its times in seconds."""

    part: Part
    computing: float
    moving: float

    @property
    def seconds(self) -> float:
        """The longer of the two."""
        return max(self.computing, self.moving)

    @property
    def bound(self) -> str:
        """What it waits for: ``compute`` or ``memory``."""
        return "compute" if self.computing > self.moving else "memory"


@dataclass(frozen=True)
class RooflineCost:
    """Seconds of one step of ``config`` on ``machine``, from counts and ceilings.

    ``overhead``: seconds to launch a step. ``compute`` and ``memory``: the shares of the two peaks
    that are reached; 1.0, never reached in practice, unless calibrated. ``devices`` share weights,
    cache and work evenly and talk for free, which is the best case of tensor parallelism. Raises
    ``InvalidRequestError`` where the weights do not fit, or a number is out of range.
    """

    config: ModelConfig
    machine: Machine
    devices: int = 1
    overhead: float = 0.0
    compute: float = 1.0
    memory: float = 1.0
    calibrated: str = ""
    _remembered: Any = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        check_int("devices", self.devices, 1)
        check_float("launch overhead", self.overhead, 0.0)
        check_float("share of peak operations", self.compute, 0.0, low_open=True)
        check_float("share of peak bandwidth", self.memory, 0.0, low_open=True)
        self.machine.peak(self.config.dtype)
        needed = weight_bytes(self.config)
        if needed >= self.memory_bytes:
            fit = self.devices * math.ceil((needed + 1) / self.memory_bytes)
            limit = (
                f"a model that fits {self.memory_bytes / 1e9:.4g} GB; {self.config.label} needs "
                f"{needed / 1e9:.4g} GB for its weights: take {fit} devices or more, or another machine"
            )
            raise InvalidRequestError("model", self.config.label, limit)
        object.__setattr__(self, "_remembered", lru_cache(REMEMBERED)(self._of_one))

    @property
    def memory_bytes(self) -> float:
        """Bytes of memory of all devices."""
        return self.devices * self.machine.memory.value

    @property
    def cache_tokens(self) -> int:
        """Tokens whose keys and values fit beside the weights."""
        return int((self.memory_bytes - weight_bytes(self.config)) / kv_bytes_per_token(self.config))

    @property
    def peak(self) -> float:
        """Operations a second that are reached."""
        return self.devices * self.machine.peak(self.config.dtype) * self.compute

    @property
    def bandwidth(self) -> float:
        """Bytes a second that are reached."""
        return self.devices * self.machine.bytes_per_second(weight_bytes(self.config)) * self.memory

    @property
    def provenance(self) -> str:
        """Where the costs come from, in words."""
        name, figures = (
            self.machine.name,
            (self.machine.peak_figure(self.config.dtype), self.machine.bandwidth),
        )
        machine = f"{self.devices} x {name} with free communication" if self.devices > 1 else name
        how = self.calibrated or f"{self.compute:.0%} of peak operations, {self.memory:.0%} of bandwidth"
        how += "" if all(figure.checked for figure in figures) else ", a peak that was not checked"
        return f"roofline of {machine}, {how}, overhead {1e3 * self.overhead:.3g} ms a step"

    def seconds(self, new_tokens: int, cached_tokens: int = 0) -> float:
        """The time of a step that runs one sequence's ``new_tokens`` behind ``cached_tokens``."""
        return float(self._remembered(new_tokens, cached_tokens))

    def seconds_of(self, batch: Sequences, *, sampled: int | None = None) -> float:
        """The time of a step over several sequences at once: weights are read once for all."""
        return self._seconds(load_of(batch, sampled=sampled))

    def parts(self, batch: Sequences, *, sampled: int | None = None) -> list[PartTime]:
        """Each part's two times, in order; without the overhead."""
        return self._parts(load_of(batch, sampled=sampled))

    def _parts(self, load: Load) -> list[PartTime]:
        peak, bandwidth = self.peak, self.bandwidth
        return [
            PartTime(part, part.operations / peak, part.bytes / bandwidth)
            for part in count_load(self.config, load).parts
        ]

    def _of_one(self, new_tokens: int, cached_tokens: int) -> float:
        return self._seconds(Load(new_tokens, attention_pairs(new_tokens, cached_tokens), cached_tokens, 1))

    def _seconds(self, load: Load) -> float:
        return self.overhead + math.fsum(part.seconds for part in self._parts(load))


def decode_batch_at_balance(cost: RooflineCost, cached: int = 0, most: int = 1 << 16) -> int | None:
    """The smallest batch of decoding sequences whose feed-forward waits for computing, not for memory.

    Attention never does: its keys and values grow with the batch, weights do not. None: not up to ``most``.
    """
    check_int("cached tokens", cached, 0)

    def computes(batch: int) -> bool:
        parts = cost._parts(Load(batch, batch * attention_pairs(1, cached), batch * cached, batch))
        return next(part for part in parts if part.part.name == "feed-forward").bound == "compute"

    low, high = 0, 1
    while not computes(high):
        low, high = high, high * 2
        if high > most:
            return None
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (low, middle) if computes(middle) else (middle, high)
    return high
