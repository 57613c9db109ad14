"""The engines by name, for the command line and the notebooks. A new engine adds one line."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import MappingProxyType

from servelib.clock import Clock
from servelib.engine.naive import NaiveEngine
from servelib.engine.protocol import Engine, Model
from servelib.spans import SpanLog

EngineFactory = Callable[[Model, Clock, SpanLog | None], Engine]

ENGINES: Mapping[str, EngineFactory] = MappingProxyType(
    {
        "naive": lambda model, clock, spans: NaiveEngine(model, clock=clock, spans=spans),
        "cached": lambda model, clock, spans: NaiveEngine(model, use_cache=True, clock=clock, spans=spans),
    }
)


def make_engine(name: str, model: Model, clock: Clock, spans: SpanLog | None = None) -> Engine:
    """The engine called ``name``, running ``model`` on ``clock``.

    Raises ``KeyError`` on an unknown name; ``ENGINES`` lists the known ones.
    """
    return ENGINES[name](model, clock, spans)
