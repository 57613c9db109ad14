"""The shape of a model that is counted and never built: a ``ModelConfig``, and what TinyGPT lacks."""

from __future__ import annotations

from dataclasses import dataclass

from servelib.model.config import ModelConfig

DTYPE_BYTES = {"float32": 4, "bfloat16": 2, "float16": 2, "float64": 8}


@dataclass(frozen=True, slots=True)
class Experts:
    """A mixture of experts: of ``count`` feed-forwards in a layer, each token runs ``active``.

    ``ffn_size`` is the inner width of one expert. Shazeer et al. 2017. Raises ``ValueError`` when the
    numbers do not fit together.
    """

    count: int
    active: int
    ffn_size: int

    def __post_init__(self) -> None:
        if not 1 <= self.active <= self.count:
            raise ValueError(f"active experts: got {self.active}, must be from 1 to {self.count}")
        if self.ffn_size < 1:
            raise ValueError(f"ffn_size of an expert: got {self.ffn_size}, must be at least 1")

    def touched(self, tokens: int) -> float:
        """How many experts of a layer a step of ``tokens`` reads, on average.

        Each token is taken to choose evenly and by itself, so that an expert is missed by all with
        probability (1 - active / count) ** tokens. Real routers are less even and touch fewer.
        """
        return self.count * (1.0 - (1.0 - self.active / self.count) ** tokens)


@dataclass(frozen=True, slots=True)
class Shape(ModelConfig):
    """A ``ModelConfig`` with what some real models add: experts, biases, norms of queries and keys.

    Engines and costs take it wherever they take a ``ModelConfig``. ``TinyGPT`` does not compute the
    additions, so it is to be counted, not built.
    """

    experts: Experts | None = None
    qkv_bias: bool = False
    qk_norm: bool = False

    @property
    def parameters(self) -> int:
        """How many weights the model has, all experts included."""
        return self._parameters(self.experts.count if self.experts else 1)

    @property
    def active_parameters(self) -> int:
        """How many weights one token runs through; fewer than all in a mixture of experts."""
        return self._parameters(self.experts.active if self.experts else 1)

    def _parameters(self, experts: int) -> int:
        queries, keys = self.heads * self.head_size, 2 * self.kv_heads * self.head_size
        layer = (2 * queries + keys) * self.width + 2 * self.width
        layer += queries + keys if self.qkv_bias else 0
        layer += 2 * self.head_size if self.qk_norm else 0
        if self.experts is None:
            layer += 3 * self.width * self.ffn_size
        else:  # the router's matrix has a row an expert
            layer += experts * 3 * self.width * self.experts.ffn_size + self.width * self.experts.count
        embeddings = self.vocab_size * self.width * (1 if self.tied_output else 2)
        return embeddings + self.layers * layer + self.width


def experts_of(config: ModelConfig) -> Experts | None:
    """The experts of a model, None for a dense one."""
    return config.experts if isinstance(config, Shape) else None


def bytes_per_number(config: ModelConfig) -> int:
    """Bytes of one weight, activation, key or value."""
    return DTYPE_BYTES[config.dtype]


def weight_bytes(config: ModelConfig) -> int:
    """Bytes of all weights: what must fit in memory before the first token."""
    return config.parameters * bytes_per_number(config)


def kv_bytes_per_token(config: ModelConfig) -> int:
    """Bytes of keys and values that one token leaves in the cache, over all layers.

    2 (a key and a value) x layers x KV heads x head size x bytes. Grouped queries share heads
    (Ainslie et al. 2023): it is the 8 KV heads of Llama 3 70B that count, not its 64 query heads.
    """
    return 2 * config.layers * config.kv_heads * config.head_size * bytes_per_number(config)
