"""The conditions line: what a table was measured on, with, and when."""

from __future__ import annotations

import math
import os
import platform
import sys
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from importlib.metadata import PackageNotFoundError, version
from typing import Any, Protocol, runtime_checkable

from servelib.engine.protocol import Engine
from servelib.harness.metrics import SLO
from servelib.harness.trace import Trace

CLOSED = "closed loop,"


def closed_loop(callers: int) -> str:
    """How the conditions name arrivals that callers make."""
    return f"{CLOSED} {callers} caller{'s' if callers > 1 else ''}"


def callers_of(arrivals: str) -> int | None:
    """How many callers ``closed_loop`` named; None of an open loop."""
    return int(arrivals.removeprefix(CLOSED).split()[0]) if arrivals.startswith(CLOSED) else None


@runtime_checkable
class Predicted(Protocol):
    """A model that charges predicted costs, and can say where they come from."""

    @property
    def provenance(self) -> str:
        """The origin of its costs, in words."""
        ...


@dataclass(frozen=True, slots=True)
class Conditions:
    """Everything a reader needs to judge a table, or to make it again.

    In virtual time ``machine``, ``torch`` and ``measured`` are None and ``cost`` says where step
    costs come from: then nothing here changes from run to run.
    """

    model: str
    parameters: int | None  # None: a server that does not say
    engine: str
    clock: str
    machine: str | None
    torch: str | None  # its version, and how many threads it computes with
    cost: str | None
    arrivals: str
    prompt: str
    output: str
    seed: int
    rates: tuple[float, ...]
    requests: int
    runs: int
    slo_ttft: float
    slo_gap: float
    measured: str | None
    one_trace: bool = False  # the same in every run; else run k is drawn with seed + k

    def line(self) -> str:
        """The line that follows every table."""
        size = "" if self.parameters is None else f" ({self.parameters:,} params)"
        parts = [self.model + size, self.engine if self.remote else f"{self.engine} engine"]
        if self.clock == "virtual":
            parts.append("virtual time" + (f" ({self.cost})" if self.cost else ""))
        elif self.remote:
            parts.append(f"client on {self.machine}")
        else:
            parts += [self.machine or "unknown machine", f"torch {self.torch}" if self.torch else "no torch"]
        one_seed = self.runs == 1 or self.one_trace
        seeds = f"seed {self.seed}" if one_seed else f"seeds {self.seed}-{self.seed + self.runs - 1}"
        repeats = "1 run" if self.runs == 1 else f"{self.runs} runs"
        parts += [self.arrivals, f"prompt {self.prompt}", f"output {self.output}", seeds]
        rates = [] if self.closed else [_rates(self.rates)]
        parts += [*rates, f"{self.requests} request{'s' if self.requests > 1 else ''} x {repeats}"]
        if self.measured:
            parts.append(f"measured {self.measured}")
        return "Conditions: " + ", ".join(parts)

    def to_dict(self) -> dict[str, Any]:
        """For JSON: every field by its name, the line as printed, and one run's seed each."""
        return {
            "line": self.line(),
            "model": self.model,
            "parameters": self.parameters,
            "engine": self.engine,
            "clock": self.clock,
            "machine": self.machine,
            "torch": self.torch,
            "cost": self.cost,
            "arrivals": self.arrivals,
            "prompt": self.prompt,
            "output": self.output,
            "seeds": [self.seed + (0 if self.one_trace else run) for run in range(self.runs)],
            "rates": [finite_rate(rate) for rate in self.rates],
            "requests": self.requests,
            "runs": self.runs,
            "slo": {"ttft": self.slo_ttft, "gap": self.slo_gap},
            "measured": self.measured,
        }

    @property
    def remote(self) -> bool:
        """Whether a server was measured over HTTP: ``engine`` is its address, ``machine`` the client's."""
        return self.engine.startswith("http")

    @property
    def closed(self) -> bool:
        """Whether callers waited for their answers: ``arrivals`` then says how many they were."""
        return self.arrivals.startswith(CLOSED)

    def over(self, rates: tuple[float, ...]) -> Conditions:
        """The same conditions for a table over several rates."""
        return replace(self, rates=rates)


def conditions(
    engine: Engine, trace: Trace, *, runs: int, slo: SLO, virtual: bool, now: datetime | None = None
) -> Conditions:
    """What ``engine`` on ``trace`` is being measured under, at ``now`` (this moment, if None)."""
    config = engine.model.config
    moment = (now or datetime.now(UTC)).isoformat(timespec="seconds")
    return Conditions(
        model=config.label,
        parameters=config.parameters,
        engine=engine.name,
        clock="virtual" if virtual else "wall",
        machine=None if virtual else machine(),
        torch=None if virtual else torch_in_use(),
        cost=engine.model.provenance if virtual and isinstance(engine.model, Predicted) else None,
        arrivals=trace.arrivals,
        prompt=trace.prompt,
        output=trace.output,
        seed=trace.seed,
        rates=() if trace.rate is None else (float(trace.rate),),
        requests=len(trace.requests),
        runs=runs,
        slo_ttft=slo.ttft,
        slo_gap=slo.gap,
        measured=None if virtual else moment,
    )


def where(rate: float, arrivals: str) -> str:
    """How a sentence names one point: ``at 4/s``, ``all at once``, ``with 2 callers``."""
    if arrivals.startswith(CLOSED):
        return "with" + arrivals.removeprefix(CLOSED)
    return "all at once" if math.isinf(rate) else f"at {rate:.4g}/s"


def finite_rate(rate: float) -> float | str:
    """A rate for JSON, which has no infinity: all at once is ``"inf"``, as other tools write it."""
    return rate if math.isfinite(rate) else "inf"


def machine() -> str:
    """The processors this process may use, such as ``2x x86_64 CPU``."""
    allowed = getattr(os, "sched_getaffinity", None)  # Linux only
    count = len(allowed(0)) if allowed else os.cpu_count() or 1
    return f"{count}x {platform.machine()} CPU"


def torch_in_use() -> str | None:
    """The installed torch and its threads, such as ``2.13.0+cpu, 1 thread``; None where there is none.

    Torch is never imported for this: before somebody else has, it has no threads to speak of.
    """
    try:
        found = version("torch")
    except PackageNotFoundError:
        return None
    loaded = sys.modules.get("torch")
    if loaded is None:
        return found
    threads = loaded.get_num_threads()
    return f"{found}, {threads} thread{'s' if threads > 1 else ''}"


def _rates(rates: tuple[float, ...]) -> str:
    if not rates:
        return "arrival rate set by the trace"
    if rates == (math.inf,):
        return "arrival rate inf"
    if len(rates) > 1:
        return f"arrival rates {', '.join(f'{rate:.4g}' for rate in rates)}/s"
    shown = f"{rates[0]:.4g}"
    return f"arrival rate {shown}.0/s" if shown.isdigit() else f"arrival rate {shown}/s"
