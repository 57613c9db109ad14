"""The shape of a Llama-like model, and the reference preset. No torch: the simulator reads it too."""

from __future__ import annotations

import math
from dataclasses import dataclass

DTYPES = ("float32", "bfloat16", "float16", "float64")
_SIZES = ("vocab_size", "width", "layers", "heads", "kv_heads", "head_size", "ffn_size", "context")


@dataclass(frozen=True, slots=True)
class RopeScaling:
    """Llama 3's way to a longer context: slow rotations slow down by ``factor``, fast ones stay.

    A pair that turns fewer than ``low_turns`` times in ``original_context`` tokens is slowed, one
    that turns more than ``high_turns`` times is not; between, the two are blended. Source: the code
    published with Llama 3.1. Raises ``ValueError`` on a value out of range.
    """

    factor: float
    low_turns: float
    high_turns: float
    original_context: int

    def __post_init__(self) -> None:
        for name in ("factor", "low_turns", "high_turns", "original_context"):
            value = getattr(self, name)
            if isinstance(value, bool) or not isinstance(value, int | float):
                raise ValueError(f"rope scaling, {name}: got {value!r}, must be a number")
            if not (math.isfinite(value) and value > 0):
                raise ValueError(f"rope scaling, {name}: got {value!r}, must be a finite number above 0")
        if self.low_turns >= self.high_turns:
            raise ValueError(
                f"rope scaling, low_turns: got {self.low_turns}, must be below high_turns ({self.high_turns})"
            )


@dataclass(frozen=True, slots=True)
class ModelConfig:
    """Sizes of a decoder-only transformer with grouped-query attention and a gated feed-forward.

    ``label`` is the name that tables and conditions lines print. ``eos_id`` may be several ids that
    each end a text. Raises ``ValueError`` when the sizes do not fit together.
    """

    label: str
    vocab_size: int = 260
    width: int = 256
    layers: int = 6
    heads: int = 8
    kv_heads: int = 2
    head_size: int = 32
    ffn_size: int = 1024
    context: int = 2048
    rope_theta: float = 10000.0
    norm_eps: float = 1e-5
    tied_output: bool = False
    bos_id: int | None = None
    eos_id: int | tuple[int, ...] | None = None
    dtype: str = "float32"
    seed: int = 0
    rope_scaling: RopeScaling | None = None

    def __post_init__(self) -> None:
        for name in _SIZES:
            size = getattr(self, name)
            if not isinstance(size, int) or isinstance(size, bool) or size < 1:
                raise ValueError(f"{name}: got {size!r}, must be an integer of at least 1")
        if self.heads % self.kv_heads:
            raise ValueError(
                f"kv_heads: got {self.kv_heads}, must divide heads ({self.heads}) so that groups are equal"
            )
        if self.head_size % 2:
            raise ValueError(f"head_size: got {self.head_size}, must be even: rotary positions turn pairs")
        for name in ("rope_theta", "norm_eps"):
            value = getattr(self, name)
            if not (math.isfinite(value) and value > 0):
                raise ValueError(f"{name}: got {value!r}, must be a finite number above 0")
        ends = self.eos_id if isinstance(self.eos_id, tuple) else (self.eos_id,)
        for name, token_id in (("bos_id", self.bos_id), *(("eos_id", end) for end in ends)):
            if token_id is not None and not 0 <= token_id < self.vocab_size:
                raise ValueError(f"{name}: got {token_id}, must be from 0 to {self.vocab_size - 1}")
        if self.dtype not in DTYPES:
            raise ValueError(f"dtype: got {self.dtype!r}, must be one of {', '.join(DTYPES)}")

    @property
    def parameters(self) -> int:
        """How many weights the model has."""
        query = self.width * self.heads * self.head_size
        key_value = 2 * self.width * self.kv_heads * self.head_size
        attention = query + key_value + query  # the output projection has the query's size
        layer = attention + 3 * self.width * self.ffn_size + 2 * self.width
        embeddings = self.vocab_size * self.width * (1 if self.tied_output else 2)
        return embeddings + self.layers * layer + self.width


REFERENCE = ModelConfig(label="TinyGPT (reference, random weights)", bos_id=256, eos_id=257)
"""The course's model: exactly 5,838,080 parameters, 256 bytes and 4 specials (see text/tokenizer)."""
