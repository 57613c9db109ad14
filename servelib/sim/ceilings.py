"""The two ceilings of the machine at hand, in seconds: how fast it multiplies, and how fast it reads.

A roofline is only as good as its ceilings, and a processor's data sheet says little of one thread. So
they are measured with what a step itself uses: the same product of matrices, by the same kernel, and a sum
over memory, which reads each number once and hardly computes.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from statistics import median
from types import MappingProxyType

import torch

from servelib.harness.conditions import machine as processors
from servelib.harness.conditions import torch_in_use
from servelib.model.config import REFERENCE, ModelConfig
from servelib.model.linear import linear
from servelib.model.tinygpt import TinyGPT
from servelib.sim.machines import Figure, Machine, machine_named

PRODUCTS = (64, 128, 256, 512, 1024)
READS = (1 << 18, 1 << 20, 1 << 22, 1 << 24, 1 << 26, 1 << 28)
REPEATS = 7
LONG_ENOUGH = 0.005  # seconds of one timing, so that the clock's own cost is nothing


@dataclass(frozen=True, slots=True)
class Ceiling:
    """One size and the median rate seen there, in operations or bytes a second.

    ``size`` is the side of the square matrices, or the bytes read.
    """

    size: int
    rate: float
    slowest: float
    fastest: float


@dataclass(frozen=True, slots=True)
class Ceilings:
    """Both ceilings at several sizes, on ``where``."""

    products: tuple[Ceiling, ...]
    reads: tuple[Ceiling, ...]
    where: str

    def machine(self, *, held: float) -> Machine:
        """The reference machine's entry with these rates, for a model whose weights are ``held`` bytes.

        The peak is the fastest product. The bandwidth is of the largest read; for a model that stays in
        the cache, of the read that is closest to its size.
        """
        entry, said = machine_named("cpu"), f"measured on {self.where}"
        near = min(self.reads, key=lambda read: abs(read.size - held))
        peak = max(product.rate for product in self.products)
        return replace(
            entry,
            name=self.where,
            operations=MappingProxyType({"float32": Figure(peak, said)}),
            bandwidth=Figure(self.reads[-1].rate, said),
            cache_bandwidth=Figure(near.rate, said),
        )


def measure_ceilings(
    *, products: Sequence[int] = PRODUCTS, reads: Sequence[int] = READS, repeats: int = REPEATS
) -> Ceilings:
    """Measure with as many threads as torch computes with now. About a second at the default sizes."""
    generator = torch.Generator().manual_seed(0)
    with torch.inference_mode():
        multiplied = tuple(_product(side, repeats, generator) for side in products)
        read = tuple(_read(size, repeats) for size in reads)
    return Ceilings(multiplied, read, f"{processors()}, torch {torch_in_use()}")


def launch_overhead(config: ModelConfig = REFERENCE, *, repeats: int = REPEATS) -> float:
    """Seconds to launch a step of ``config``: of a model with its layers and next to no width.

    What such a step computes and reads is nothing; that each of its kernels must be called is not.
    """
    thin = replace(config, width=4, heads=2, kv_heads=1, head_size=2, ffn_size=4)
    model = TinyGPT(thin)
    cache = model.new_cache()
    model.next_logits([0], cache)
    room = max(1, (config.context - 8) // repeats // 8)
    seen = []
    for _ in range(repeats):
        start = time.perf_counter()
        for _ in range(room):
            model.next_logits([0], cache)
        seen.append((time.perf_counter() - start) / room)
    return median(seen)


def _product(side: int, repeats: int, generator: torch.Generator) -> Ceiling:
    left, right = (torch.randn(side, side, generator=generator) for _ in range(2))  # [side, side]
    return _rate(side, 2.0 * side**3, lambda: linear(left, right), repeats)


def _read(size: int, repeats: int) -> Ceiling:
    numbers = torch.ones(size // 4)  # float32
    return _rate(size, float(size), numbers.sum, repeats)


def _rate(size: int, work: float, run: Callable[[], object], repeats: int) -> Ceiling:
    run()  # the first call also allocates and fills caches
    start = time.perf_counter()
    run()
    times = max(1, round(LONG_ENOUGH / max(time.perf_counter() - start, 1e-7)))
    seen = []
    for _ in range(repeats):
        start = time.perf_counter()
        for _ in range(times):
            run()
        seen.append((time.perf_counter() - start) / times)
    return Ceiling(size, work / median(seen), work / max(seen), work / min(seen))
