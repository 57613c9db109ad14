"""A server that is not there: any engine, machine and model under load, in virtual time.

The engine, the driver, the metrics and the report are those of a live run; only the model is a
stand-in that charges each step's predicted time to a virtual clock. Standard library only.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from servelib.clock import Clock, VirtualClock
from servelib.engine.protocol import Engine
from servelib.engine.registry import BATCH_SIZE, ENGINES, MAX_NUM_SEQS, check_options, make_engine
from servelib.errors import InvalidRequestError
from servelib.harness.drive import Progress
from servelib.harness.laws import arrivals_from
from servelib.harness.lengths import Lengths
from servelib.harness.metrics import SLO
from servelib.harness.sweep import Point, sweep_system
from servelib.harness.system import InProcess
from servelib.harness.trace import REFERENCE_OUTPUT, REFERENCE_PROMPT, Workload
from servelib.model.config import ModelConfig
from servelib.sim.catalogue import named
from servelib.sim.cost import Cost, reference_cost
from servelib.sim.machines import REFERENCE_MACHINE, devices_for, machine_named
from servelib.sim.model import CostedModel
from servelib.sim.models import REFERENCE_MODEL, model_named
from servelib.sim.occupancy import Filled, Life, admissions, cache_fill, lives, padded_fill
from servelib.sim.roofline import RooflineCost
from servelib.sim.shape import kv_bytes_per_token, weight_bytes
from servelib.spans import SpanLog, Stage


@dataclass(frozen=True, slots=True)
class Reached:
    """How much of a machine is reached: shares of its peaks, and seconds to launch a step."""

    compute: float = 1.0
    memory: float = 1.0
    overhead: float = 0.0


@dataclass(frozen=True, slots=True)
class System:
    """What is simulated, by name. ``longest`` is the most tokens that one request can hold.

    ``devices`` None: the fewest in one server that hold the weights and the longest request.
    ``reached``: what is reached of the machine's peaks, None for all of it and no launch cost.
    ``options`` are the engine's, as in the registry.
    """

    engine: str = "naive"
    machine: str = REFERENCE_MACHINE
    model: str = REFERENCE_MODEL
    devices: int | None = None
    longest: int = 1
    reached: Reached | None = None
    options: Mapping[str, int] = field(default_factory=dict)

    @property
    def config(self) -> ModelConfig:
        """The model's shape. Raises ``InvalidRequestError`` on an unknown name."""
        return model_named(self.model)

    def cost(self) -> Cost:
        """What its steps cost: the fitted line for the reference machine and model, else a roofline.

        Raises ``InvalidRequestError`` on an unknown name, a request longer than the context, and a
        model or a request that does not fit the memory.
        """
        machine, config = machine_named(self.machine), self.config
        if self.longest > config.context:
            limit = f"at most {config.context}: the context of {config.label}"
            raise InvalidRequestError("prompt and output together", f"{self.longest} tokens", limit)
        fitted = (self.machine, self.model, self.devices or 1) == (REFERENCE_MACHINE, REFERENCE_MODEL, 1)
        if fitted and self.reached is None:
            return reference_cost()
        machine.peak(config.dtype)  # a format it cannot compute with is said before a size it cannot hold
        needed = weight_bytes(config) + self.longest * kv_bytes_per_token(config)
        reached = self.reached or Reached()
        devices = self.devices or devices_for(needed, machine)
        cost = RooflineCost(config, machine, devices, reached.overhead, reached.compute, reached.memory)
        if self.longest > cost.cache_tokens:
            limit = f"at most {cost.cache_tokens}: what fits beside the weights; take more devices"
            raise InvalidRequestError("prompt and output together", f"{self.longest} tokens", limit)
        return cost

    def maker(
        self, on_made: Callable[[CostedModel, SpanLog], None] | None = None
    ) -> Callable[[Clock], Engine]:
        """Makes a fresh engine on a virtual clock. Everything is checked now.

        Raises as ``cost``, and on an option that the engine does not have, or that the memory does not
        allow.
        """
        named("engine", self.engine, ENGINES)
        check_options(self.engine, self.options)
        config, cost = self.config, self.cost()
        options = self._options(cost)

        def make(clock: Clock) -> Engine:
            if not isinstance(clock, VirtualClock):
                raise TypeError("predicted costs need a virtual clock")
            model = CostedModel(config, cost, clock)
            if on_made is None:
                return make_engine(self.engine, model, clock, None, **options)
            spans = SpanLog(only=[Stage.QUEUE])
            on_made(model, spans)
            return make_engine(self.engine, model, clock, spans, **options)

        clock = VirtualClock()  # an option out of range is said now
        make_engine(self.engine, CostedModel(config, cost, clock), clock, None, **options)
        return make

    def _options(self, cost: Cost) -> dict[str, int]:
        """The engine's options, where a memory is at stake with as many places as fit beside the weights.

        Each place is as large as the longest request that can come.
        """
        options = dict(self.options)
        name = {"static": "batch_size", "continuous": "max_num_seqs"}.get(self.engine)
        if name is None or not isinstance(cost, RooflineCost):
            return options
        fit = cost.cache_tokens // self.longest
        if options.get(name, 1) > fit:
            limit = f"at most {fit}: places of {self.longest} tokens that fit beside the weights"
            raise InvalidRequestError(name, options[name], limit)
        if fit < {"batch_size": BATCH_SIZE, "max_num_seqs": MAX_NUM_SEQS}[name]:
            options.setdefault(name, fit)
        if self.engine == "continuous":
            options["slot_size"] = self.longest
        return options


@dataclass(frozen=True, slots=True)
class Settings:
    """All that a simulation depends on: the same settings give the same bytes, anywhere.

    ``arrivals`` is a law as on the command line: ``poisson``, ``constant``, ``gamma:0.25``, ...
    ``options`` are the engine's, as in the registry.
    """

    engine: str = "naive"
    machine: str = REFERENCE_MACHINE
    model: str = REFERENCE_MODEL
    rate: float = 4.0
    requests: int = 24
    seed: int = 7
    prompt: Lengths = REFERENCE_PROMPT
    output: Lengths = REFERENCE_OUTPUT
    slo: SLO = SLO()  # noqa: RUF009 - frozen
    arrivals: str = "poisson"
    devices: int | None = None
    runs: int = 1
    reached: Reached | None = None
    options: Mapping[str, int] = field(default_factory=dict)

    @property
    def system(self) -> System:
        """What is simulated."""
        longest = self.prompt.high + self.output.high
        return System(
            self.engine, self.machine, self.model, self.devices, longest, self.reached, self.options
        )

    @property
    def workload(self) -> Workload:
        """What is asked of it."""
        law = self.arrivals
        return Workload(self.prompt, self.output, self.requests, self.seed, lambda r: arrivals_from(law, r))


@dataclass(frozen=True, slots=True)
class Simulated:
    """One rate, and what a page draws of its first run: each request's life, and the cache over time.

    ``cache`` is empty for an engine that keeps no keys and values. ``capacity`` is how many tokens'
    keys and values fit beside the weights; None where the machine's memory is not at stake.
    """

    point: Point
    lives: list[Life]
    cache: list[Filled]
    capacity: int | None


def simulate(
    settings: Settings,
    *,
    on_progress: Progress | None = None,
    should_stop: Callable[[], bool] | None = None,
) -> Point:
    """Run ``settings`` and return the same ``Point`` as a live measurement would.

    Raises ``InvalidRequestError`` on settings that cannot be, before anything runs, and
    ``SweepError`` when the engine breaks the run or makes no progress.
    """
    return curve(settings, [settings.rate], on_progress=on_progress, should_stop=should_stop)[0]


def curve(
    settings: Settings,
    rates: Sequence[float],
    *,
    on_progress: Progress | None = None,
    should_stop: Callable[[], bool] | None = None,
) -> list[Point]:
    """As ``simulate``, at each of ``rates``: the same prompts and lengths, closer or further apart."""
    system = InProcess(settings.system.maker(), "virtual")
    return sweep_system(
        system,
        settings.workload,
        rates,
        runs=settings.runs,
        slo=settings.slo,
        on_progress=on_progress,
        should_stop=should_stop,
    )


def replay(
    settings: Settings,
    *,
    on_progress: Progress | None = None,
    should_stop: Callable[[], bool] | None = None,
) -> Simulated:
    """As ``simulate``, and keep who waited and ran when, and what the cache held."""
    made: list[tuple[CostedModel, SpanLog]] = []
    make = settings.system.maker(lambda model, spans: made.append((model, spans)))
    point = sweep_system(
        InProcess(make, "virtual"),
        settings.workload,
        [settings.rate],
        runs=settings.runs,
        slo=settings.slo,
        on_progress=on_progress,
        should_stop=should_stop,
    )[0]
    model, spans = made[0]
    found = lives(point.runs[0], admissions(spans.spans()))
    fill = padded_fill if settings.engine == "static" else cache_fill
    held = fill(found, kv_bytes_per_token(model.config)) if model.caches else []
    cost = model.cost
    return Simulated(point, found, held, cost.cache_tokens if isinstance(cost, RooflineCost) else None)
