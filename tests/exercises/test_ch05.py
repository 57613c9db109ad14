"""The checks of chapter 5: right caches of several styles pass, and each usual mistake is explained."""

from __future__ import annotations

import re
import textwrap
from collections.abc import Iterator
from pathlib import Path

import nbformat
import pytest
import torch
import torch.nn.functional as F  # noqa: N812

from servelib.errors import InvalidRequestError
from servelib.exercises.ch05 import check_attend, check_room
from servelib.kv.contiguous import ContiguousKV
from servelib.model.attention import causal_attention

CHAPTER = Path(__file__).parents[2] / "notebooks" / "ch05_the_kv_cache.ipynb"


@pytest.fixture(autouse=True, scope="module")
def one_thread() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def chapter_cache():
    """The class of the chapter's exercise cell, with the folded solution put in."""
    cells = nbformat.read(CHAPTER, as_version=4).cells
    (skeleton,) = [c.source for c in cells if c.cell_type == "code" and "class MyKV" in c.source]
    (text,) = [c.source for c in cells if "<details>" in c.source and "def attend" in c.source]
    solution = textwrap.indent(re.search(r"```python\n(.*?)```", text, re.S).group(1), "    ")
    space = {"torch": torch, "check_attend": check_attend}
    exec(skeleton.replace("check_attend(MyKV)", solution), space)
    return space["MyKV"]


class Skeleton:
    """As the chapter hands it out, but for ``attend``."""

    def __init__(self, config):
        self.length = 0
        shape = (config.layers, config.kv_heads, 8, config.head_size)
        self.keys, self.values = torch.empty(shape), torch.empty(shape)  # [L, KV, capacity, D]

    def positions(self, new):
        return slice(self.length, self.length + new)

    def advance(self, new):
        self.length += new

    def attend(self, layer, q, k, v):
        raise NotImplementedError

    def room_for(self, end):
        capacity = self.keys.shape[2]
        if end > capacity:
            more = max(end, 2 * capacity) - capacity
            self.keys, self.values = (F.pad(x, (0, 0, 0, more)) for x in (self.keys, self.values))

    def stored(self, layer, k, v):
        new = self.positions(k.shape[2])
        self.room_for(new.stop)
        self.keys[layer, :, new] = k[0]
        self.values[layer, :, new] = v[0]
        return self.keys[None, layer, :, : new.stop], self.values[None, layer, :, : new.stop]


def mask(q, keys, shift=0):
    new, total = q.shape[2], keys.shape[2]
    return torch.ones(new, total, dtype=torch.bool).tril(total - new + shift)


def sdpa(q, keys, values, seen):
    return F.scaled_dot_product_attention(q, keys, values, attn_mask=seen, enable_gqa=True)


class Materialised(Skeleton):
    """Heads copied out for each query head, the softmax by hand: slower, and right."""

    def attend(self, layer, q, k, v):
        keys, values = self.stored(layer, k, v)
        keys, values = (x.repeat_interleave(q.shape[1] // x.shape[1], 1) for x in (keys, values))
        scores = q @ keys.transpose(2, 3) / q.shape[3] ** 0.5
        return scores.masked_fill(~mask(q, keys), float("-inf")).softmax(-1) @ values


class Concatenating:
    """Copies everything for each token: quadratic, and right."""

    def __init__(self, config):
        self.length = 0
        self.held = [[torch.empty(1, config.kv_heads, 0, config.head_size)] * 2 for _ in range(config.layers)]

    def positions(self, new):
        return slice(self.length, self.length + new)

    def attend(self, layer, q, k, v):
        self.held[layer] = [
            torch.cat((old[:, :, : self.length], new), 2)
            for old, new in zip(self.held[layer], (k, v), strict=True)
        ]
        return causal_attention(q, *self.held[layer])

    def advance(self, new):
        self.length += new


def whole_context(config):
    """Reserves all of it at once."""
    cache = Materialised(config)
    cache.room_for(config.context)
    return cache


@pytest.mark.parametrize("make", [ContiguousKV, chapter_cache(), Materialised, Concatenating, whole_context])
def test_right_caches_of_several_styles_pass(make):
    assert len(check_attend(make).require().results) == 12


class ForgetsTheOld(Skeleton):
    def attend(self, layer, q, k, v):
        self.stored(layer, k, v)
        return causal_attention(q, k, v)


class NoMask(Skeleton):
    def attend(self, layer, q, k, v):
        keys, values = self.stored(layer, k, v)
        return sdpa(q, keys, values, None)


class NoMaskForChunks(Skeleton):
    def attend(self, layer, q, k, v):
        keys, values = self.stored(layer, k, v)
        return sdpa(q, keys, values, mask(q, keys) if self.length == 0 else None)


class MaskFromTheFirstKey(Skeleton):
    def attend(self, layer, q, k, v):
        keys, values = self.stored(layer, k, v)
        return F.scaled_dot_product_attention(q, keys, values, is_causal=q.shape[2] > 1, enable_gqa=True)


class SeesNotItself(Skeleton):
    def attend(self, layer, q, k, v):
        keys, values = self.stored(layer, k, v)
        return sdpa(q, keys, values, mask(q, keys, -1))


class OneTooMany(Skeleton):
    def attend(self, layer, q, k, v):
        keys, values = self.stored(layer, k, v)
        return sdpa(q, keys, values, mask(q, keys, 1))


class BeforeStoring(Skeleton):
    """Slices up to ``length``, which does not count the new tokens yet."""

    def attend(self, layer, q, k, v):
        keys, values = self.stored(layer, k, v)
        if self.length:
            keys, values = keys[:, :, : self.length], values[:, :, : self.length]
            return sdpa(q, keys, values, mask(q, keys))
        return causal_attention(q, keys, values)


class AdvancesInAttend(Skeleton):
    def attend(self, layer, q, k, v):
        keys, values = self.stored(layer, k, v)
        if layer == len(self.keys) - 1:
            self.length += k.shape[2]
        return causal_attention(q, keys, values)

    def advance(self, new):
        pass


class AdvancesInEveryLayer(AdvancesInAttend):
    def attend(self, layer, q, k, v):
        keys, values = self.stored(layer, k, v)
        self.length += k.shape[2]
        return causal_attention(q, keys, values)


class AdvancesByOne(Skeleton):
    def attend(self, layer, q, k, v):
        keys, values = self.stored(layer, k, v)
        return causal_attention(q, keys, values)

    def advance(self, new):
        self.length += 1  # right for single tokens alone


class OneStoreForAllLayers(Skeleton):
    def attend(self, layer, q, k, v):
        return causal_attention(q, *self.stored(0, k, v))


class HeadsInterleaved(Skeleton):
    def attend(self, layer, q, k, v):
        keys, values = self.stored(layer, k, v)
        keys, values = (x.repeat(1, q.shape[1] // x.shape[1], 1, 1) for x in (keys, values))
        return sdpa(q, keys, values, mask(q, keys))


class Swapped(Skeleton):
    def attend(self, layer, q, k, v):
        keys, values = self.stored(layer, k, v)
        return causal_attention(q, values, keys)


class Unscaled(Skeleton):
    def attend(self, layer, q, k, v):
        keys, values = self.stored(layer, k, v)
        return causal_attention(q * q.shape[3] ** 0.5, keys, values)


class EmptyPlacesToo(Skeleton):
    def __init__(self, config):
        super().__init__(config)
        self.keys.zero_()
        self.values.zero_()

    def attend(self, layer, q, k, v):
        self.stored(layer, k, v)
        keys, values = self.keys[None, layer], self.values[None, layer]
        return sdpa(q, keys, values, None)


class NeverGrows(Skeleton):
    def room_for(self, end):
        pass


class NeverGrowsAttends(NeverGrows, AdvancesByOne):
    def advance(self, new):
        self.length += new


class ForgetsWhenItGrows(NeverGrowsAttends):
    def room_for(self, end):
        if end > self.keys.shape[2]:
            shape = (*self.keys.shape[:2], max(end, 2 * self.keys.shape[2]), self.keys.shape[3])
            self.keys, self.values = torch.zeros(shape), torch.zeros(shape)


class GrowsByOne(NeverGrowsAttends):
    """Enough for a token at a time, not for a chunk."""

    def room_for(self, end):
        if end > self.keys.shape[2]:
            self.keys, self.values = (F.pad(x, (0, 0, 0, 1)) for x in (self.keys, self.values))


class KeepsTheCallersTensors(Concatenating):
    """A list of what came, put together at each call."""

    def __init__(self, config):
        self.length = self.steps = 0
        self.held = [[] for _ in range(config.layers)]

    def attend(self, layer, q, k, v):
        self.held[layer] = [*self.held[layer][: self.steps], (k, v)]
        return causal_attention(
            q, torch.cat([k for k, _ in self.held[layer]], 2), torch.cat([v for _, v in self.held[layer]], 2)
        )

    def advance(self, new):
        super().advance(new)
        self.steps += 1


class AnswersInItsOwnMemory(NeverGrowsAttends):
    def __init__(self, config):
        super().__init__(config)
        self.keys = F.pad(self.keys, (0, 0, 0, 40))
        self.values = F.pad(self.values, (0, 0, 0, 40))
        self.answer = torch.empty(1, config.heads, 40, config.head_size)

    def attend(self, layer, q, k, v):
        self.answer[:, :, : q.shape[2]] = super().attend(layer, q, k, v)
        return self.answer[:, :, : q.shape[2]]


class ScalesTheQuery(Skeleton):
    def attend(self, layer, q, k, v):
        keys, values = self.stored(layer, k, v)
        answer = causal_attention(q, keys, values)
        q *= 0.5
        return answer


_SHARED = torch.empty(3, 2, 64, 8), torch.empty(3, 2, 64, 8)


class OneMemoryForAll(NeverGrowsAttends):
    def __init__(self, config):
        self.length = 0
        heads = slice(0, config.kv_heads)
        self.keys, self.values = (x[: config.layers, heads] for x in _SHARED)


class AppendsAgain(Skeleton):
    """Joins old and new, whatever ``length`` says."""

    def __init__(self, config):
        self.length = 0
        empty = torch.empty(1, config.kv_heads, 0, config.head_size)
        self.held = [(empty, empty)] * config.layers

    def attend(self, layer, q, k, v):
        self.held[layer] = tuple(torch.cat(pair, 2) for pair in zip(self.held[layer], (k, v), strict=True))
        return causal_attention(q, *self.held[layer])


class EmptyPlacesMasked(Skeleton):
    """Right, but that it multiplies by 0 what was never written."""

    def __init__(self, config):
        super().__init__(config)
        self.keys.fill_(torch.nan)
        self.values.fill_(torch.nan)

    def attend(self, layer, q, k, v):
        new = self.positions(k.shape[2])
        while self.keys.shape[2] < new.stop:
            more = torch.full_like(self.keys, torch.nan)
            self.keys, self.values = torch.cat((self.keys, more), 2), torch.cat((self.values, more), 2)
        self.keys[layer, :, new], self.values[layer, :, new] = k[0], v[0]
        seen = torch.ones(k.shape[2], self.keys.shape[2], dtype=torch.bool).tril(new.start)
        return sdpa(q, self.keys[None, layer], self.values[None, layer], seen)


WRONG = {
    ForgetsTheOld: ("a token behind a prompt", "forget the old ones"),
    NoMask: ("in a prompt", "sees the whole chunk"),
    NoMaskForChunks: ("in a chunk", "sees the whole chunk"),
    MaskFromTheFirstKey: ("in a chunk", "is_causal=True"),
    SeesNotItself: ("a first token", "not even its own"),
    OneTooMany: ("in a prompt", "one key too many"),
    BeforeStoring: ("a token behind a prompt", "see itself too"),
    AdvancesInAttend: ("attend() stores", "must not move length"),
    AdvancesInEveryLayer: ("attend() stores", "must not move length"),
    AdvancesByOne: ("a token behind", ""),
    OneStoreForAllLayers: ("each layer", "another layer's"),
    HeadsInterleaved: ("query heads share", "wrong order"),
    Swapped: ("a first token", "swapped"),
    Unscaled: ("in a prompt", "not scaled"),
    EmptyPlacesToo: ("a first token", "hold no token yet"),
    NeverGrowsAttends: ("memory grows", "Make room before"),
    ForgetsWhenItGrows: ("memory grows", "copy what is held"),
    GrowsByOne: ("memory grows", "raised"),
    KeepsTheCallersTensors: ("what is stored is a copy", "not yours"),
    AnswersInItsOwnMemory: ("what is stored is a copy", "tensor of its own"),
    ScalesTheQuery: ("a first token", "writes into q"),
    OneMemoryForAll: ("two caches share nothing", "share"),
    AppendsAgain: ("attend() stores", "cut what is held at self.length"),
    EmptyPlacesMasked: ("a first token", "no weight of 0"),
}


@pytest.mark.parametrize("make", WRONG, ids=lambda make: make.__name__)
def test_each_mistake_is_caught_and_explained(make):
    name, hint = WRONG[make]
    report = check_attend(make)
    (first, *_) = report.failures
    assert first.name.startswith(name), report
    assert hint in first.mistake.hint, report
    assert first.mistake.tried


@pytest.mark.parametrize(
    ("answer", "hint"),
    [
        (None, "end with return"),
        (3, "attention of q"),
        (torch.zeros(1, 2), "one row for each new query"),
    ],
)
def test_what_is_no_attention_is_asked_for(answer, hint):
    class Odd(Skeleton):
        def attend(self, layer, q, k, v):
            return answer

    assert hint in check_attend(Odd).failures[0].mistake.hint


def test_an_untouched_skeleton_and_a_cache_without_a_length():
    report = check_attend(Skeleton)
    assert len(report.failures) == len(report.results)
    assert "Nothing is written there yet" in report.failures[0].mistake.hint

    class Bare:
        def __init__(self, config):
            pass

    assert "self.length = 0" in check_attend(Bare).failures[0].mistake.hint
    with pytest.raises(AssertionError, match="FAIL"):
        report.require()


@pytest.mark.parametrize("answer", [37, 37.25, 37.0])
def test_the_room_rounded_or_not(answer):
    assert check_room(answer)


def test_the_room_of_another_model():
    assert check_room(4, model="llama3-70b", tokens=100_000, room=131.1e9)
    with pytest.raises(InvalidRequestError, match="qwen3-32b"):
        check_room(1, model="qwen")


@pytest.mark.parametrize(
    ("answer", "hint"),
    [
        (4.66, "64 heads"),
        (74.5, "Twice as many"),
        (18.6, "not 4"),
        (2384, "one layer"),
        (4768, "128 numbers"),
        (298, "one head"),
        (152_588, "Those are tokens"),
        (40, "GiB"),
        (4, "64 heads"),
        (18, "not 4"),
        (39, "Bytes of one token"),
        (38, "Round down"),
        (None, "Put your number"),
    ],
)
def test_each_slip_of_the_room_has_its_hint(answer, hint):
    (failure,) = check_room(answer).failures
    assert hint in failure.mistake.hint
