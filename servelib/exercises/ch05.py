"""The checks of chapter 5: a cache of your own, and how many requests fit beside a model's weights."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch

from servelib.exercises.attending import Feed, MakeCache
from servelib.exercises.check import Check, Mistake, Report, run_checks
from servelib.exercises.number import check_number
from servelib.model.config import ModelConfig
from servelib.model.tinygpt import TinyGPT
from servelib.sim.models import model_named
from servelib.sim.shape import bytes_per_number, kv_bytes_per_token

CONTEXT = 40  # small, and no power of two: growth must stop at it
ONE_HEAD = ModelConfig("one head", width=8, layers=1, heads=1, kv_heads=1, head_size=8, context=CONTEXT)
GROUPED = ModelConfig("grouped", width=8, layers=1, heads=4, kv_heads=2, head_size=8, context=CONTEXT)
LAYERED = ModelConfig("layered", width=8, layers=3, heads=4, kv_heads=2, head_size=8, context=CONTEXT)
TINY = ModelConfig("tiny", vocab_size=97, width=32, layers=2, heads=4, kv_heads=2, head_size=8, ffn_size=48,
                   context=CONTEXT)  # fmt: skip


def check_attend(make_cache: MakeCache, *, limit: float = 5.0) -> Report:
    """Test a contiguous cache: ``make_cache(config)`` with ``length``, ``attend`` and ``advance``.

    How it stores and grows is its own affair; materialised heads are slower and as right. Each check
    gets a new cache and at most ``limit`` seconds. Never raises: the report explains.
    """
    checks: list[tuple[str, Callable[[MakeCache], None]]] = [
        ("a first token gives its own value back", _first_token),
        ("in a prompt, each token sees itself and what came before", _prompt),
        ("a token behind a prompt sees all of the prompt, and itself", _token),
        ("in a chunk behind a prompt, each token sees up to itself", _chunk),
        ("query heads share the key-value heads, group by group", _groups),
        ("attend() stores, and only advance() counts", _advance),
        ("each layer has keys and values of its own", _layers),
        ("memory grows up to the context and keeps what it held", _growth),
        ("what is stored is a copy, and nothing that was given is changed", _copies),
        ("two caches share nothing", _apart),
        ("twenty random ways to cut a sequence give the attention of the whole", _any_chunks),
        ("TinyGPT chooses the same tokens with your cache as without one", _same_tokens),
    ]
    return run_checks(
        "Your cache",
        [Check(name, lambda run=run: run(make_cache)) for name, run in checks],  # type: ignore[misc]
        limit=limit,
    )


def check_room(answer: Any, *, model: str = "qwen3-32b", tokens: int = 4096, room: float = 40e9) -> Report:
    """Check how many requests of ``tokens`` fit into ``room`` bytes of cache. Never raises.

    Right as a whole number or before rounding. Raises ``InvalidRequestError`` on an unknown model.
    """
    config = model_named(model)
    size, each = bytes_per_number(config), kv_bytes_per_token(config) * tokens
    right = room / each
    slips = [
        (room * config.kv_heads / config.heads / each,
         f"You counted {config.heads} heads. Query heads share: {config.kv_heads} have keys and values."),
        (2 * right, f"Twice as many. A token leaves a key and a value, and a number has {size} bytes."),
        (right * size / 4, f"A number of {config.dtype} has {size} bytes, not 4."),
        (right * config.layers, f"That is for one layer. The model has {config.layers}."),
        (right * config.head_size, f"Each head's key has {config.head_size} numbers, not one."),
        (right * config.kv_heads, f"That is for one head. A layer has {config.kv_heads} of them."),
        (right * tokens, "Those are tokens. A request has many."),
        (right * 2**30 / 1e9, "That is so many GiB. A GB, as data sheets have it, is 10^9 bytes."),
        (math.ceil(right), "Round down: a part of a request does not fit."),
    ]  # fmt: skip
    slips += [(math.floor(value), why) for value, why in slips if value >= 1]  # rounded, as the answer may be
    return check_number(
        "Room for requests",
        answer,
        right,
        tried=f"your number of requests of {tokens:,} tokens, {config.label}",
        expected=f"how many fit into {room / 1e9:g} GB (of 10^9 bytes)",
        hint="Bytes of one token: 2 (a key and a value), layers, key-value heads, head size, bytes of a "
        "number. Then times the tokens of a request.",
        slips=slips,
        tolerance=max(0.005, 1 - math.floor(right) / right + 1e-9),
    )


def _first_token(make_cache: MakeCache) -> None:
    Feed(make_cache, ONE_HEAD).give(1)


def _prompt(make_cache: MakeCache) -> None:
    Feed(make_cache, ONE_HEAD).give(4)


def _token(make_cache: MakeCache) -> None:
    feed = Feed(make_cache, ONE_HEAD)
    for new in (2, 1, 1):
        feed.give(new)


def _chunk(make_cache: MakeCache) -> None:
    feed = Feed(make_cache, ONE_HEAD)
    for new in (2, 2):
        feed.give(new)


def _groups(make_cache: MakeCache) -> None:
    feed = Feed(make_cache, GROUPED)
    for new in (3, 1):
        feed.give(new)


def _layers(make_cache: MakeCache) -> None:
    feed = Feed(make_cache, LAYERED)
    for new in (2, 1, 1):
        feed.give(new)


def _advance(make_cache: MakeCache) -> None:
    feed = Feed(make_cache, LAYERED)
    for layer in range(LAYERED.layers):
        feed.attend(layer, 2)
        length = feed.cache.length
        if length != 0:
            hint = (
                "Every layer of a step stores at the same positions, so attend() must not move length. The "
                "model calls advance() once, after the last layer."
            )
            raise Mistake(
                f"attend() of layers 0 to {layer}, and no advance()",
                "length is 0",
                f"length is {length}",
                hint,
            )
    hint = (
        "What the first try stored must be written over: the new tokens stand at self.length, whatever is "
        "there. With torch.cat, cut what is held at self.length first."
    )
    feed.give(2, "the same step again, as after a failure half-way", hint=hint)
    if feed.cache.length != 2:
        hint = "advance(new) adds new to length."
        raise Mistake("advance(2) of a new cache", "length is 2", f"length is {feed.cache.length}", hint)


def _growth(make_cache: MakeCache) -> None:
    hint = (
        "Fewer tokens were right. Make room before the new ones are stored, for all of them, and copy what "
        "is held, of every layer. (A slice past the end of a tensor is empty, and nobody complains. And "
        "memory without a token may hold NaN, which no weight of 0 hides: read up to the newest.)"
    )
    for steps in ([1] * CONTEXT, [3, CONTEXT - 3]):
        feed = Feed(make_cache, LAYERED)
        for new in steps:
            feed.give(new, hint=hint)


def _copies(make_cache: MakeCache) -> None:
    feed = Feed(make_cache, LAYERED)
    hint = "You keep the tensors that you were given. They are not yours: copy them into memory of your own."
    for new in (3, 1, 1):
        feed.give(
            new, f"{new} more, after the tensors of earlier calls were overwritten by their owner", hint=hint
        )
        feed.overwrite()
    feed.unchanged()


def _apart(make_cache: MakeCache) -> None:
    one, other = Feed(make_cache, GROUPED, seed=1), Feed(make_cache, GROUPED, seed=2)
    hint = (
        "They share memory. Make it in __init__ (self.keys = ...), not in the body of the class or outside."
    )
    for new in (2, 1):
        for feed in (one, other):
            feed.give(new, "two caches, filled in turn", hint=hint)


def _any_chunks(make_cache: MakeCache) -> None:
    generator = torch.Generator().manual_seed(5)
    for seed in range(20):
        feed = Feed(make_cache, LAYERED, seed=seed)
        while feed.start < CONTEXT:
            most = min(12, CONTEXT - feed.start)
            feed.give(int(torch.randint(1, most + 1, (1,), generator=generator)))


def _same_tokens(make_cache: MakeCache) -> None:
    model, prompt = TinyGPT(TINY), [5, 11, 2, 71, 8, 3, 3]
    cache, new, ids = make_cache(TINY), prompt, list(prompt)
    while len(ids) < CONTEXT:
        with_cache, without = model.next_logits(new, cache), model.next_logits(ids)
        off = float((with_cache - without).abs().max())
        if not off < 1e-3:  # rounding is a hundred times smaller; NaN fails too
            tried = f"a prompt of {len(prompt)} tokens, then one token at a time, up to {len(ids)}"
            hint = "Each step alone is right, by the checks above. What does the model do between two steps?"
            raise Mistake(
                tried, "the scores of a run without a cache", f"scores that are off by {off:.2g}", hint
            )
        new = [int(without.argmax())]
        ids += new
