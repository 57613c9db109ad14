"""What people get wrong when they count a step: each slip as a way to count, and the words for it."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Sequence
from typing import Any

from servelib.model.config import ModelConfig
from servelib.sim.cost import attention_pairs

Case = tuple[ModelConfig, int, int]
"""(config, new tokens, cached tokens)."""

SLIPS: dict[str, str] = {
    "one a multiply-add": "A multiply-add is two operations, not one.",
    "no gate": "SwiGLU has three matrices: gate, up and down. Two are counted.",
    "query heads": "Keys and values have config.kv_heads heads, not config.heads: queries share them.",
    "output for all": "The output matrix runs for the last token, from which one samples, and no other.",
    "no output": "The output matrix is missing. Tied or not, its product with the last token runs.",
    "untied output": "A tied output matrix still multiplies: it saves memory, not operations.",
    "no attention": "Attention is missing: each query's products with all keys, then with all values.",
    "one attention product": "Attention has two products: queries with keys, then weights with values.",
    "key-value pairs": "Every query head attends. Attention's products run for config.heads heads.",
    "cache through weights": "Cached tokens do not run through the weights again: hence the cache.",
    "cache not seen": "The new tokens attend to the cached ones too.",
    "no causality": "A token attends to those before it and to itself: half of the square of new tokens.",
    "one layer": "That is one layer. Multiply by config.layers.",
    "no output projection": "The output projection is missing, from heads x head size back to width.",
    "embedding": "The embedding is a look-up, not a product: it costs no operations.",
}
"""Each usual slip and its hint."""


def miscount(case: Case, *slips: str) -> float:
    """Operations of one sequence's step, counted with ``slips``; without any, as ``sim.count`` does."""
    config, new, cached = case
    queries = config.heads * config.head_size
    keys = (config.heads if "query heads" in slips else config.kv_heads) * config.head_size
    projections = 1 if "no output projection" in slips else 2
    matrices = 2 if "no gate" in slips else 3
    layer = config.width * (projections * queries + 2 * keys + matrices * config.ffn_size)
    if "no causality" in slips:
        pairs: float = new * (new + cached)
    else:
        pairs = attention_pairs(new, cached)
    if "cache not seen" in slips:
        pairs -= new * cached
    attending = (config.kv_heads if "key-value pairs" in slips else config.heads) * config.head_size
    products = 0 if "no attention" in slips else 1 if "one attention product" in slips else 2
    through = new + cached if "cache through weights" in slips else new
    layers = 1 if "one layer" in slips else config.layers
    outputs = new if "output for all" in slips else 1
    if "no output" in slips or ("untied output" in slips and config.tied_output):
        outputs = 0
    adds = layers * (through * layer + products * pairs * attending)
    adds += outputs * config.vocab_size * config.width
    adds += new * config.vocab_size * config.width if "embedding" in slips else 0
    return (1.0 if "one a multiply-add" in slips else 2.0) * adds


def diagnose(fn: Callable[..., Any], cases: Sequence[Case], *, within: float = 0.02) -> str:
    """The hint for the slips that explain ``fn`` on all cases, one slip or two; empty where none does."""
    try:
        found = [float(fn(*case)) for case in cases]
    except Exception:
        return ""

    def explains(slips: tuple[str, ...]) -> bool:
        wrong = (miscount(case, *slips) for case in cases)
        return all(math.isclose(got, value, rel_tol=within) for got, value in zip(found, wrong, strict=True))

    for many in (1, 2):
        for slips in itertools.combinations(SLIPS, many):
            if explains(slips):
                return " And: ".join(SLIPS[slip] for slip in slips)
    return ""
