"""The two seams of every engine: what it offers to callers, and what it asks of a model."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

from servelib.engine.batch import Batch
from servelib.model.config import ModelConfig
from servelib.request import Request, RequestState, SampledToken, StepOutput


class Engine(Protocol):
    """What the harness, the server and the simulator see. One thread at a time may use it."""

    name: str

    @property
    def model(self) -> Model:
        """The model it runs."""
        ...

    @property
    def has_work(self) -> bool:
        """Whether ``step`` has anything to do."""
        ...

    def add_request(self, request: Request) -> None:
        """Queue a request. Validates; never runs the model.

        Raises ``InvalidRequestError`` for one that can never be served.
        """
        ...

    def step(self) -> list[StepOutput]:
        """Run one iteration. Never blocks: with nothing to do it returns an empty list."""
        ...

    def abort(self, request_id: str) -> None:
        """Drop a request and all it holds. An unknown or finished id has no effect."""
        ...


class Model(Protocol):
    """What a one-request-at-a-time engine asks of a model.

    Logits and cache are opaque to the engine: tensors in the data plane, a stand-in in virtual
    time. That is why the engine itself needs no torch.
    """

    @property
    def config(self) -> ModelConfig:
        """Its shape, vocabulary, context and label."""
        ...

    def new_cache(self) -> Any:
        """An empty cache for one request."""
        ...

    def next_logits(self, ids: Sequence[int], cache: Any | None = None) -> Any:
        """Run the tokens ``ids`` that follow what ``cache`` holds; logits after the last one.

        With a cache, the keys and values of ``ids`` are added to it. Without one, ``ids`` is the
        whole sequence.
        """
        ...

    def sample(self, logits: Any, state: RequestState) -> SampledToken:
        """Choose the next token of ``state`` from its logits."""
        ...


class BatchModel(Model, Protocol):
    """What an engine that runs many requests a step asks besides. Logits and caches stay opaque."""

    def new_slots(self, slots: int, size: int) -> Any:
        """Cache memory for ``slots`` requests of up to ``size`` tokens each."""
        ...

    def run(self, batch: Batch, cache: Any) -> Any:
        """Run all rows as one flat row of tokens; logits after each position that is sampled, in order.

        The keys and values of the new tokens are stored at each row's place. Nothing else changes:
        the same batch can be run again, and so can each of its rows alone.
        """
        ...

    def sample_batch(self, logits: Any, states: Sequence[RequestState]) -> list[SampledToken]:
        """Choose one token for each row of logits, each as if it were alone."""
        ...


class PaddedModel(Model, Protocol):
    """What a static batch asks besides: rows of equal length, the short ones padded on the left."""

    def new_padded(self, pads: Sequence[int]) -> Any:
        """An empty cache for ``len(pads)`` rows; row b begins with ``pads[b]`` tokens that do not count."""
        ...

    def run_padded(self, rows: Sequence[Sequence[int]], cache: Any) -> Any:
        """Run the same number of new tokens of every row; logits after each row's last, in order."""
        ...

    def sample_batch(self, logits: Any, states: Sequence[RequestState]) -> list[SampledToken]:
        """As ``BatchModel.sample_batch``."""
        ...
