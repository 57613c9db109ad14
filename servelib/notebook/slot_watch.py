"""Who held which place of a batch, and when: what the picture of slots is drawn from.

The model is the real one and computes every token. Only time is charged, so that a run looks the same
on every machine.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

from servelib.clock import VirtualClock
from servelib.engine.batch import Batch
from servelib.engine.registry import ServedModel, make_engine
from servelib.harness.drive import drive
from servelib.harness.records import RunRecord
from servelib.harness.trace import Trace
from servelib.model.config import ModelConfig
from servelib.request import RequestState, SampledToken
from servelib.sim.cost import Cost
from servelib.spans import Span, SpanLog, Stage

Kind = Literal["prompt", "answer", "padding", "finished"]


@dataclass(frozen=True, slots=True)
class Piece:
    """A place held from ``start`` to ``end`` (seconds) for one request, and what for.

    ``padding`` and ``finished`` are waste: pads before a shorter prompt, a row whose answer is complete.
    """

    place: int
    request_id: str
    kind: Kind
    start: float
    end: float

    @property
    def wasted(self) -> bool:
        """Whether nobody asked for it."""
        return self.kind in ("padding", "finished")


@dataclass(frozen=True, slots=True)
class Watched:
    """One run: its pieces in time order, its records, and each request's tokens."""

    places: int
    pieces: tuple[Piece, ...]
    run: RunRecord
    tokens: dict[str, tuple[int, ...]]


class ChargedModel:
    """A real model on a virtual clock: it computes, and the clock is charged what ``cost`` says."""

    def __init__(self, model: ServedModel, cost: Cost, clock: VirtualClock) -> None:
        self._model, self._cost, self._clock = model, cost, clock
        self.places: list[tuple[float, float, Batch]] = []  # of each flat batch: from when to when
        self.tokens: dict[str, list[int]] = {}

    @property
    def config(self) -> ModelConfig:
        """The model's."""
        return self._model.config

    def new_cache(self) -> Any:
        """The model's, which counts its tokens."""
        return self._model.new_cache()

    def next_logits(self, ids: Sequence[int], cache: Any | None = None) -> Any:
        """One sequence."""
        self._charge([(len(ids), 0 if cache is None else cache.length)])
        return self._model.next_logits(ids, cache)

    def new_slots(self, slots: int, size: int) -> Any:
        """The model's."""
        return self._model.new_slots(slots, size)

    def run(self, batch: Batch, cache: Any) -> Any:
        """A flat batch; who was where is noted."""
        start = self._clock.now()
        self._charge(batch.sequences)
        self.places.append((start, self._clock.now(), batch))
        return self._model.run(batch, cache)

    def new_padded(self, pads: Sequence[int]) -> Any:
        """The model's, which counts its columns."""
        return self._model.new_padded(pads)

    def run_padded(self, rows: Sequence[Sequence[int]], cache: Any) -> Any:
        """A static batch: pads cost what tokens cost."""
        self._charge([(len(row), cache.length) for row in rows])
        return self._model.run_padded(rows, cache)

    def sample(self, logits: Any, state: RequestState) -> SampledToken:
        """One token, noted."""
        return self._note([self._model.sample(logits, state)], [state])[0]

    def sample_batch(self, logits: Any, states: Sequence[RequestState]) -> list[SampledToken]:
        """A token each, noted."""
        return self._note(self._model.sample_batch(logits, states), states)

    def _charge(self, batch: list[tuple[int, int]]) -> None:
        self._clock.advance(self._cost.seconds_of(batch))

    def _note(self, tokens: list[SampledToken], states: Sequence[RequestState]) -> list[SampledToken]:
        for token, state in zip(tokens, states, strict=True):
            kept = self.tokens.setdefault(state.request.request_id, [])
            if len(kept) < state.request.sampling.max_tokens:  # a finished row's token is nobody's
                kept.append(token.token_id)
        return tokens


def watch(name: str, model: ServedModel, cost: Cost, trace: Trace, **options: int) -> Watched:
    """Play ``trace`` through the engine called ``name`` (with its options), and see who was where."""
    clock, log = VirtualClock(), SpanLog()
    charged = ChargedModel(model, cost, clock)
    run = drive(make_engine(name, charged, clock, log, **options), trace, clock)
    pieces = _slots(charged.places) if charged.places else _rows(log.spans())
    places = max((piece.place for piece in pieces), default=-1) + 1
    tokens = {name: tuple(ids) for name, ids in charged.tokens.items()}
    return Watched(places, tuple(pieces), run, tokens)


def _slots(steps: Sequence[tuple[float, float, Batch]]) -> list[Piece]:
    """Of a continuous engine: each row of each step says its slot. Nothing is wasted."""
    pieces = [
        Piece(row.place, row.request_id, _kind(row.stage), start, end)
        for start, end, batch in steps
        for row in batch.rows
    ]
    return _joined(pieces)


def _rows(spans: Sequence[Span]) -> list[Piece]:
    """Of a static engine, or one that runs one request at a time: the rows that prefill together."""
    batches: list[list[Span]] = []  # the prefills of each
    steps: dict[str, list[Span]] = {}  # the decodes of each request
    for span in spans:
        if span.stage is Stage.PREFILL:
            if not batches or span.start != batches[-1][0].start:
                batches.append([])
            batches[-1].append(span)
        elif span.stage is Stage.DECODE:
            steps.setdefault(span.request_id, []).append(span)
    pieces = []
    for batch in batches:
        end = max((s.end for row in batch for s in steps.get(row.request_id, ())), default=batch[0].end)
        longest = max(row.new_tokens for row in batch)
        for place, row in enumerate(batch):
            name, mine = row.request_id, steps.get(row.request_id, [])
            begins = row.end - row.seconds * row.new_tokens / longest
            done = mine[-1].end if mine else row.end
            parts: tuple[tuple[Kind, float, float], ...] = (
                ("padding", row.start, begins),
                ("prompt", begins, row.end),
                ("answer", row.end, done),
                ("finished", done, end),
            )
            pieces += [Piece(place, name, kind, start, stop) for kind, start, stop in parts if stop > start]
    return sorted(pieces, key=lambda piece: (piece.start, piece.place))


def _kind(stage: Stage) -> Kind:
    return "prompt" if stage is Stage.PREFILL else "answer"


def _joined(pieces: Sequence[Piece]) -> list[Piece]:
    """Steps of one request in one place, one after the other and of one kind, as one piece."""
    whole: dict[tuple[int, str, str], Piece] = {}
    for piece in pieces:
        key = piece.place, piece.request_id, piece.kind
        before = whole.get(key)
        start = piece.start if before is None else before.start
        whole[key] = Piece(piece.place, piece.request_id, piece.kind, start, piece.end)
    return sorted(whole.values(), key=lambda piece: (piece.start, piece.place))
