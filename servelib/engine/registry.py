"""The engines by name, for the command line and the notebooks. A new engine adds one entry."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Protocol

from servelib.clock import Clock
from servelib.engine.continuous import ContinuousEngine
from servelib.engine.naive import NaiveEngine
from servelib.engine.protocol import BatchModel, Engine, PaddedModel
from servelib.engine.scheduler import Limits, Scheduler
from servelib.engine.static import StaticEngine
from servelib.errors import InvalidRequestError
from servelib.kv.pool import SlotPool
from servelib.spans import SpanLog

BATCH_SIZE, MAX_NUM_SEQS = 8, 64  # of the static and of the continuous engine, unless said otherwise


class ServedModel(BatchModel, PaddedModel, Protocol):
    """A model that every engine can run."""


EngineFactory = Callable[..., Engine]
"""Of (model, clock, spans) and the engine's own options by name."""


def _naive(model: ServedModel, clock: Clock, spans: SpanLog | None) -> Engine:
    return NaiveEngine(model, clock=clock, spans=spans)


def _cached(model: ServedModel, clock: Clock, spans: SpanLog | None) -> Engine:
    return NaiveEngine(model, use_cache=True, clock=clock, spans=spans)


def _static(
    model: ServedModel, clock: Clock, spans: SpanLog | None, *, batch_size: int = BATCH_SIZE
) -> Engine:
    return StaticEngine(model, batch_size, clock=clock, spans=spans)


def _continuous(
    model: ServedModel,
    clock: Clock,
    spans: SpanLog | None,
    *,
    max_num_seqs: int = MAX_NUM_SEQS,
    max_num_batched_tokens: int | None = None,
    slot_size: int | None = None,
) -> Engine:
    """A slot is as large as the context, and any prompt fits one step, unless said otherwise."""
    context = model.config.context
    size = context if slot_size is None else slot_size
    tokens = max(2048, context, max_num_seqs) if max_num_batched_tokens is None else max_num_batched_tokens
    limits, pool = Limits(max_num_seqs, tokens), SlotPool(max_num_seqs, size)
    cache = model.new_slots(max_num_seqs, size)
    return ContinuousEngine(model, cache, Scheduler(pool, limits), clock=clock, spans=spans)


ENGINES: Mapping[str, EngineFactory] = MappingProxyType(
    {"naive": _naive, "cached": _cached, "static": _static, "continuous": _continuous}
)

OPTIONS: Mapping[str, tuple[str, ...]] = MappingProxyType(
    {"static": ("batch_size",), "continuous": ("max_num_seqs", "max_num_batched_tokens", "slot_size")}
)
"""Which options an engine has; none, if it is not listed."""


def check_options(name: str, options: Mapping[str, int]) -> None:
    """Raise ``InvalidRequestError`` for an option that the engine called ``name`` does not have."""
    for option in options:
        if option not in OPTIONS.get(name, ()):
            having = [engine for engine, known in OPTIONS.items() if option in known]
            limit = f"left out: it is an option of {' and '.join(having) or 'no'} engine, not of {name}"
            raise InvalidRequestError(option, options[option], limit)


def make_engine(
    name: str, model: ServedModel, clock: Clock, spans: SpanLog | None = None, **options: int
) -> Engine:
    """The engine called ``name``, running ``model`` on ``clock``. Options given are added to its name.

    Raises ``KeyError`` on an unknown name (``ENGINES`` lists the known ones), and
    ``InvalidRequestError`` on an option that it does not have (``OPTIONS``) or that is out of range.
    """
    factory = ENGINES[name]
    check_options(name, options)
    engine = factory(model, clock, spans, **options)
    if options:  # what a table was measured with must be in its conditions
        engine.name += f" ({', '.join(f'{option} {value}' for option, value in options.items())})"
    return engine
