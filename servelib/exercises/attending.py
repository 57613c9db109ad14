"""Feeds a reader's cache with keys and values, compares what it attends to, and names what went wrong."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from servelib.exercises.check import Mistake
from servelib.model.config import ModelConfig

MakeCache = Callable[[ModelConfig], Any]  # the reader's class: what it gives may be anything yet

CLOSE = 1e-4  # float32 against float64, on numbers of size 1


@dataclass(frozen=True, slots=True)
class Case:
    """One call of ``attend``: ``new`` tokens from ``start`` on. ``q``: [H, T, D]; ``k``, ``v``: [KV, S, D].

    ``k`` and ``v`` hold all tokens up to the newest; ``other`` is the last layer's pair.
    """

    q: Tensor
    k: Tensor
    v: Tensor
    start: int
    other: tuple[Tensor, Tensor]

    @property
    def right(self) -> Tensor:
        """What attention is, in float64."""
        return _attention(self.q, self.k, self.v, self._seen(0))

    def _seen(self, shift: int) -> Tensor:
        """Which keys each query sees, [T, S], ``shift`` keys more than it should."""
        return torch.ones(self.q.shape[1], self.k.shape[1], dtype=torch.bool).tril(self.start + shift)

    def slips(self) -> list[tuple[Tensor, str]]:
        """What the usual mistakes give, each with its hint."""
        q, k, v, start = self.q, self.k, self.v, self.start
        new, total = q.shape[1], k.shape[1]
        old_k, old_v = self.other
        mixed_k, mixed_v = (
            torch.cat((old[:, :start], mine[:, start:]), 1) for old, mine in ((old_k, k), (old_v, v))
        )
        shared_k, shared_v = (x.repeat(len(q) // len(k), 1, 1) for x in (k, v))
        causal = self._seen(0)
        everything = torch.ones(new, total, dtype=torch.bool)
        return [
            (_attention(q, k[:, start:], v[:, start:], causal[:, start:]),
             "You attend over the new tokens alone and forget the old ones. Take the stored keys and values, "
             "from position 0 to the end of the new ones."),
            (_attention(q, k, v, everything),
             "Each query sees the whole chunk, later tokens too. Query i stands at position start + i and "
             "may see the keys up to there: a mask of shape [T, S], True where it may look."),
            (_attention(q, k, v, everything.tril()),
             "The mask begins at the first key: that is what is_causal=True does when there are fewer "
             "queries than keys. The queries are the last T of S positions: "
             "torch.ones(T, S, dtype=torch.bool).tril(S - T)."),
            (_attention(q, k, v, self._seen(-1)),
             "A token must see itself too: the last key that query i sees is its own, at start + i. Off by "
             "one: is the end of the slice, or the diagonal of the mask, one too low?"),
            (_attention(q, k, v, self._seen(1)),
             "A query sees one key too many, of a token that comes after it: the diagonal of the mask is one "
             "too high."),
            (_attention(q, shared_k, shared_v, causal),
             "The heads are shared in the wrong order. With 4 query heads and 2 key-value heads, queries 0 "
             "and 1 use head 0, and 2 and 3 use head 1: enable_gqa=True, or repeat_interleave, not repeat."),
            (_attention(q, mixed_k, mixed_v, causal),
             "The old keys and values are another layer's. Each layer needs a store of its own: index it "
             "with layer."),
            (_attention(q, v, k, causal), "Keys and values are swapped."),
            (_attention(q * q.shape[2] ** 0.5, k, v, causal),
             "The scores are not scaled. Divide them by the square root of the head size."),
            (_attention(q, k, v, causal & (torch.arange(total) > 0)),
             "The first token is not seen. Positions begin at 0."),
        ]  # fmt: skip

    def hint(self, got: Tensor) -> str:
        """The slip that gives ``got``, in words."""
        for wrong, why in self.slips():
            if not _near(wrong, self.right) and _near(got, wrong):
                return why
        ratio = got.double() / self.right
        spread = (ratio - ratio[..., :1]).abs().max()
        if bool((ratio > 0).all() and (ratio < 1).all()) and spread < 1e-2:
            return (
                "You attend over places that hold no token yet, and they take a share of the weight. Cut "
                "keys and values at the end of the new tokens."
            )
        if bool((got == 0).all(-1).any() or got.isnan().any()):
            return (
                "No value at all: a query may see no key, not even its own. Or it reads an empty place, "
                "which may hold a NaN, and no weight of 0 hides that: cut keys and values at the end of the "
                "new tokens."
            )
        return (
            f"The {self.q.shape[1]} new tokens stand at {self.start} and on. Store them there, then let "
            f"query i see keys 0 to {self.start} + i, itself included."
        )


class Feed:
    """One new cache, and a sequence of random queries, keys and values to feed it with, step by step."""

    def __init__(self, make_cache: MakeCache, config: ModelConfig, *, seed: int = 0) -> None:
        self.config, self.start = config, 0
        self.cache = make_cache(config)
        generator = torch.Generator().manual_seed(seed)
        heads = (config.heads, config.kv_heads, config.kv_heads)
        self._layers = [
            [torch.randn(n, config.context, config.head_size, generator=generator) for n in heads]
            for _ in range(config.layers)
        ]  # q, k, v: [H | KV, context, D]
        self._given: list[Tensor] = []
        self._seen: list[tuple[str, Tensor, Tensor]] = []
        length = getattr(self.cache, "length", None)
        if length != 0:
            hint = "Set self.length = 0 in __init__."
            raise Mistake("making a new cache", "length is 0", f"length is {length!r}", hint)

    def give(self, new: int, tried: str = "", *, hint: str = "") -> None:
        """One step: ``new`` tokens through every layer, each compared, then ``advance``."""
        for layer in range(self.config.layers):
            self.attend(layer, new, tried, hint=hint)
        self.cache.advance(new)
        self.start += new

    def attend(self, layer: int, new: int, tried: str = "", *, hint: str = "") -> None:
        """One call of ``attend``, compared. ``hint``: said of a wrong answer in place of a diagnosis."""
        end = self.start + new
        q, k, v = (x[None, :, self.start : end].clone() for x in self._layers[layer])
        given = [x.clone() for x in (q, k, v)]
        words = f"{tried or self._words(new)}, layer {layer}"
        got = self._checked(words, self.cache.attend(layer, q, k, v), q)
        for name, mine, before in zip("qkv", (q, k, v), given, strict=True):
            if not torch.equal(mine, before):
                hint = (
                    f"attend() writes into {name}. Make a new tensor instead of changing one that was given."
                )
                raise Mistake(words, f"{name} as it was", f"another {name}", hint)
        case = self._case(layer, end)
        if not _near(got, case.right):
            off = (got - case.right).abs().nan_to_num(9.0)  # [H, T, D]
            head, row, place = (int(i) for i in torch.unravel_index(off.argmax(), off.shape))
            some = slice(place - place % 3, place - place % 3 + 3)  # three numbers, the worst among them
            expected = f"for token {self.start + row}, head {head}: {_digits(case.right[head, row, some])}"
            raise Mistake(words, expected, _digits(got[head, row, some]), hint or case.hint(got))
        self._seen.append((words, got, got.clone()))
        self._given += (q, k, v)

    def overwrite(self) -> None:
        """Write over every tensor that was handed in, as its owner may."""
        for x in self._given:
            x.fill_(7.0)

    def unchanged(self) -> None:
        """Raise ``Mistake`` where an earlier answer has changed since it was given."""
        for words, got, before in self._seen:
            if not torch.equal(got, before):
                hint = "The answer must be a tensor of its own, not a window on memory that is written again."
                raise Mistake(f"{words}, looked at again later", "the same answer", "another one", hint)

    def _case(self, layer: int, end: int) -> Case:
        q, k, v = (x.double() for x in self._layers[layer])
        other_k, other_v = (x[:, :end].double() for x in self._layers[-1][1:])
        return Case(q[:, self.start : end], k[:, :end], v[:, :end], self.start, (other_k, other_v))

    def _words(self, new: int) -> str:
        behind = f" behind {self.start} cached" if self.start else " into an empty cache"
        return f"{new} token{'s' if new > 1 else ''}{behind}"

    @staticmethod
    def _checked(words: str, got: Any, q: Tensor) -> Tensor:
        shape = list(q.shape)
        if got is None:
            raise Mistake(words, f"a tensor of shape {shape}", "None", "Does attend() end with return?")
        if not isinstance(got, Tensor):
            raise Mistake(words, f"a tensor of shape {shape}", repr(got), "Return the attention of q alone.")
        if list(got.shape) != shape:
            hint = "attend() returns one row for each new query, in the shape of q: [1, H, T, D]."
            raise Mistake(words, f"a tensor of shape {shape}", f"one of {list(got.shape)}", hint)
        return got[0]


def _attention(q: Tensor, k: Tensor, v: Tensor, seen: Tensor) -> Tensor:
    """``q``: [H, T, D]; ``k``, ``v``: [KV, S, D] or [H, S, D]; ``seen``: [T, S]. By the book."""
    k, v = (x.repeat_interleave(len(q) // len(x), 0) for x in (k, v))  # [H, S, D]
    scores = (q @ k.transpose(1, 2) / q.shape[2] ** 0.5).masked_fill(~seen, float("-inf"))  # [H, T, S]
    out: Tensor = scores.softmax(-1) @ v
    return out


def _near(got: Tensor, expected: Tensor) -> bool:
    return torch.allclose(got.double(), expected, atol=CLOSE, rtol=CLOSE)


def _digits(numbers: Sequence[float] | Tensor) -> str:
    return f"(..., {', '.join(f'{float(x):.3f}' for x in numbers)}, ...)"
