"""The panel "what would a step take": batch, lengths, machine and model against the roofline's answer."""

from __future__ import annotations

import dataclasses
import html

import ipywidgets as w

from servelib.errors import InvalidRequestError
from servelib.notebook.panel import Panel, dropdown, live, pick_slider
from servelib.notebook.roofline_figures import step_breakdown
from servelib.sim.count import count
from servelib.sim.machines import machine_named, machines
from servelib.sim.models import model_named, models
from servelib.sim.roofline import RooflineCost

BATCHES = tuple(2**i for i in range(13))
NEW_TOKENS = tuple(2**i for i in range(14))
CACHED = (0, *(2**i for i in range(4, 18)))
DEVICES = (1, 2, 4, 8)
FORMATS = ("float32", "bfloat16", "float16")


def arithmetic_knobs(
    *,
    batch: int = 32,
    new_tokens: int = 1,
    cached: int = 1024,
    machine: str = "h100",
    model: str = "llama3-70b",
    devices: int = 4,
) -> ArithmeticKnobs:
    """Show the panel: make it the last line of a cell. Every move is answered from counts and ceilings.

    Each of ``batch`` sequences runs ``new_tokens`` (1: decode; more: a prompt) behind ``cached``
    tokens. Raises ``InvalidRequestError`` on an unknown machine or model.
    """
    machine_named(machine)
    model_named(model)
    return ArithmeticKnobs(batch, new_tokens, cached, machine, model, devices)


class ArithmeticKnobs(Panel):
    """The panel. Its controls are attributes, so that code can turn them too."""

    def __init__(
        self, batch: int, new_tokens: int, cached: int, machine: str, model: str, devices: int
    ) -> None:
        self.batch = pick_slider("batch size (sequences)", batch, BATCHES)
        self.new_tokens = pick_slider("new tokens of each", new_tokens, NEW_TOKENS)
        self.cached = pick_slider("cached tokens of each", cached, CACHED)
        self.devices = pick_slider("devices", devices, DEVICES)
        known = [(found.name, name) for name, found in machines().items()]
        self.machine = dropdown("machine", machine, known)
        self.model = dropdown("model", model, [(found.label, name) for name, found in models().items()])
        own = [("the model's own", ""), *((name, name) for name in FORMATS)]
        self.dtype = dropdown("number format", "", own)
        self.headline = w.HTML()
        start = RooflineCost(model_named("tinygpt"), machine_named("cpu"))
        self.figure = live(step_breakdown(start.parts([(1, 0)]), alt="A step by its parts."))
        super().__init__(
            [self.batch, self.new_tokens, self.cached, self.devices, self.machine, self.model, self.dtype],
            [self.headline, self.figure],
        )
        self.refresh()

    def refresh(self) -> None:
        """Bring headline and figure up to the knobs, or say in one line why there is no such step."""
        try:
            cost = self._cost()
            self._fits(cost)
        except InvalidRequestError as error:
            self.headline.value = f'<div role="alert">{html.escape(str(error))}</div>'
            with self.figure.batch_update():  # a step that cannot be has no bars
                for trace in self.figure.data:
                    trace.x, trace.text = [0.0] * len(trace.y), None
                self.figure.layout.meta = {"alt": "No such step."}
            return
        said = self._describe(cost)
        drawn = step_breakdown(cost.parts(self._step), alt=f"A step by its parts. {said}")
        with self.figure.batch_update():
            for shown, new in zip(self.figure.data, drawn.data, strict=True):
                shown.update(new.to_plotly_json(), overwrite=True)
            self.figure.layout.xaxis.update(title=drawn.layout.xaxis.title, range=drawn.layout.xaxis.range)
            self.figure.layout.meta = drawn.layout.meta
        self.headline.value = f'<div role="status">{html.escape(said)}</div>'

    @property
    def _step(self) -> list[tuple[int, int]]:
        return [(self.new_tokens.value, self.cached.value)] * self.batch.value

    def _cost(self) -> RooflineCost:
        config = model_named(self.model.value)
        if self.dtype.value:
            config = dataclasses.replace(config, dtype=self.dtype.value)
        return RooflineCost(config, machine_named(self.machine.value), devices=self.devices.value)

    def _fits(self, cost: RooflineCost) -> None:
        each = self.new_tokens.value + self.cached.value
        if each > cost.config.context:
            limit = f"at most {cost.config.context:,}, the context of {cost.config.label}"
            raise InvalidRequestError("new and cached tokens", each, limit)
        if each * self.batch.value > cost.cache_tokens:
            limit = (
                f"at most {cost.cache_tokens // each:,} sequences of {each:,} tokens, so that their keys and "
                "values fit beside the weights: take shorter ones or more devices"
            )
            raise InvalidRequestError("batch size", self.batch.value, limit)

    def _describe(self, cost: RooflineCost) -> str:
        step, batch, new = self._step, self.batch.value, self.new_tokens.value
        parts, seconds, counted = cost.parts(step), cost.seconds_of(step), count(cost.config, step)
        moving = sum(part.seconds for part in parts if part.bound == "memory")
        bound = "memory" if 2 * moving > seconds else "computing"
        longest = max(parts, key=lambda part: part.seconds)
        held, room = (new + self.cached.value) * batch, cost.cache_tokens
        return (
            f"A step takes {_duration(seconds)} and runs {batch * new / seconds:,.0f} new tokens/s; "
            f"{longest.part.name} takes {longest.seconds / seconds:.0%}. It waits for {bound}: "
            f"{counted.intensity:.3g} operations a byte, where the machine's balance is "
            f"{cost.peak / cost.bandwidth:.3g}. The cache has room for {room:,} tokens and holds {held:,}."
        )


def _duration(seconds: float) -> str:
    for scale, unit in ((1.0, "s"), (1e3, "ms")):
        if seconds * scale >= 1.0:
            return f"{seconds * scale:.3g} {unit}"
    return f"{1e6 * seconds:.3g} µs"
