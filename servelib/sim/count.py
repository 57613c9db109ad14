"""What one step must compute and move, counted from the model's shape: operations and bytes, by name.

A multiply-add is two operations. Counted: the matrix products, and attention's two products over the
pairs that causality allows. Not counted: norms, rotary positions, softmax, the gate's product and the
sums, which do little arithmetic. Bytes: each weight once a step; the cached keys and values of each
sequence once; the new ones written once; each product's input and output once. What lies between two
products is taken to stay on the chip. Standard library only.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from servelib.errors import check_int
from servelib.model.config import ModelConfig
from servelib.sim.cost import Sequences, attention_pairs
from servelib.sim.shape import bytes_per_number, experts_of


@dataclass(frozen=True, slots=True)
class Load:
    """What a step holds, in the four sums that every count is made of.

    ``tokens`` are new; ``pairs`` are (query, key) pairs of attention; ``cached`` are tokens whose keys
    and values are read; ``sampled`` are positions for which the output matrix runs.
    """

    tokens: int
    pairs: float
    cached: int
    sampled: int


@dataclass(frozen=True, slots=True)
class Part:
    """One part of a step: its operations, and its bytes by what they hold."""

    name: str
    operations: float = 0.0
    weights: float = 0.0
    kv_read: float = 0.0
    kv_written: float = 0.0
    activations: float = 0.0

    @property
    def bytes(self) -> float:
        """All bytes that it moves."""
        return self.weights + self.kv_read + self.kv_written + self.activations


@dataclass(frozen=True, slots=True)
class StepCount:
    """A whole step, part by part, in the order in which they run."""

    parts: tuple[Part, ...]

    @property
    def operations(self) -> float:
        """Operations of all parts."""
        return math.fsum(part.operations for part in self.parts)

    @property
    def bytes(self) -> float:
        """Bytes of all parts."""
        return math.fsum(part.bytes for part in self.parts)

    @property
    def intensity(self) -> float:
        """Operations for each byte moved: where the step stands on a roofline's horizontal axis."""
        return self.operations / self.bytes

    def operations_by_name(self) -> dict[str, float]:
        """Operations of each part that has any."""
        return {part.name: part.operations for part in self.parts if part.operations}

    def bytes_by_kind(self) -> dict[str, float]:
        """Bytes of the whole step, by what they hold."""
        kinds = ("weights", "kv_read", "kv_written", "activations")
        return {kind: math.fsum(getattr(part, kind) for part in self.parts) for kind in kinds}


def load_of(batch: Sequences, *, sampled: int | None = None) -> Load:
    """The sums of a batch. ``sampled`` None: every sequence gets one token from the step.

    A chunk of a prompt that is not its last gets none. Raises ``InvalidRequestError`` on a negative
    number, or a sequence with no new token.
    """
    tokens, pairs, cached, sequences = 0, 0.0, 0, 0
    for new, behind in batch:
        check_int("new tokens", new, 1)
        check_int("cached tokens", behind, 0)
        tokens += new
        pairs += attention_pairs(new, behind)
        cached += behind
        sequences += 1
    if sampled is not None:
        check_int("sampled", sampled, 0, tokens, why="the new tokens")
    return Load(tokens, pairs, cached, sequences if sampled is None else sampled)


def count(config: ModelConfig, batch: Sequences, *, sampled: int | None = None) -> StepCount:
    """Count a step of ``config`` over ``batch``. Raises as ``load_of``."""
    return count_load(config, load_of(batch, sampled=sampled))


def count_load(config: ModelConfig, load: Load) -> StepCount:
    """Count a step from its sums."""
    size, layers, width = bytes_per_number(config), config.layers, config.width
    queries, keys = config.heads * config.head_size, config.kv_heads * config.head_size
    tokens = load.tokens

    def product(name: str, rows: int, columns: int) -> Part:
        """Each new token through a matrix [columns, rows] in every layer."""
        matrix, moved = layers * rows * columns, layers * tokens * (rows + columns)
        return Part(name, 2.0 * tokens * matrix, weights=size * matrix, activations=size * moved)

    one_product = 2.0 * load.pairs * layers * queries  # over all heads
    one_way = size * layers * keys  # a token's keys, or its values

    def attention(name: str) -> Part:
        """Queries with keys, or weights with values: scores stay on the chip (Dao et al. 2022)."""
        return Part(
            name,
            one_product,
            kv_read=load.cached * one_way,
            kv_written=tokens * one_way,
            activations=size * layers * tokens * queries,  # the queries in, or the result out
        )

    output = config.vocab_size * width
    return StepCount(
        (
            Part("embedding", weights=size * tokens * width, activations=size * tokens * width),
            product("qkv", width, queries + 2 * keys),
            attention("attention scores"),
            attention("attention values"),
            product("output projection", queries, width),
            _feed_forward(config, tokens),
            Part(
                "output matrix",
                2.0 * load.sampled * output,
                weights=size * output if load.sampled else 0.0,
                activations=size * load.sampled * (width + config.vocab_size),
            ),
        )
    )


def _feed_forward(config: ModelConfig, tokens: int) -> Part:
    """Gate and up, then down. In a mixture: the router, and the experts that tokens are sent to."""
    size, layers, width, experts = bytes_per_number(config), config.layers, config.width, experts_of(config)
    if experts is None:
        run = read = 3.0 * width * config.ffn_size
        moved = 2 * width + 3 * config.ffn_size  # in, gate and up out, their product in, out
    else:
        one, router = 3.0 * width * experts.ffn_size, float(width * experts.count)
        run = experts.active * one + router
        read = experts.touched(tokens) * one + router
        moved = experts.active * (2 * width + 3 * experts.ffn_size) + width + experts.count
    return Part(
        "feed-forward",
        2.0 * tokens * layers * run,
        weights=size * layers * read,
        activations=size * layers * tokens * moved,
    )
