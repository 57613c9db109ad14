"""Flat batches through slots give what each request alone gives, whatever runs beside it."""

from __future__ import annotations

import random
from dataclasses import dataclass, field, replace
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from steps import Steps, cut

from servelib.engine.batch import Batch, Row
from servelib.kv.contiguous import ContiguousKV
from servelib.kv.slots import SlotKV
from servelib.model.config import ModelConfig
from servelib.model.tinygpt import TinyGPT
from servelib.request import Request, RequestState
from servelib.spans import Stage

SMALL = ModelConfig(label="small", vocab_size=50, width=24, layers=2, heads=6, kv_heads=2, head_size=4,
                    ffn_size=20, context=24, seed=3)  # fmt: skip
MODEL = TinyGPT(SMALL)
SIZE = 16  # of a slot


@dataclass
class Alone:
    """A request that runs in a batch, and beside it by itself in a cache of its own."""

    name: str
    ids: list[int]
    slot: int
    done: int = 0
    cache: ContiguousKV = field(default_factory=MODEL.new_cache)

    def row(self, new: int, samples: int) -> Row:
        state = RequestState(Request(self.name, tuple(self.ids)))
        ids = self.ids[self.done : self.done + new]
        return Row(state, self.slot, self.done, ids, samples, Stage.DECODE if new == 1 else Stage.PREFILL)

    def expected(self, row: Row) -> list[torch.Tensor]:
        logits, _ = MODEL(torch.tensor([row.ids]), self.cache)
        self.done += len(row.ids)
        return list(logits[0, len(row.ids) - row.samples :])


@dataclass
class Compared:
    """Rows of logits compared, and how many had two as good as equally likely tokens."""

    rows: int = 0
    ties: int = 0

    def check(self, found: torch.Tensor, wanted: list[torch.Tensor], *, atol: float = 1e-5) -> None:
        assert len(found) == len(wanted)
        for one, other in zip(found, wanted, strict=True):
            self.rows += 1
            assert torch.allclose(one, other, atol=atol)
            first, second = other.topk(2).values.tolist()
            if first - second < 2 * atol:
                self.ties += 1
            else:
                assert one.argmax() == other.argmax()


def ids(n: int, seed: int) -> list[int]:
    rng = random.Random(seed)
    return [rng.randrange(SMALL.vocab_size) for _ in range(n)]


@st.composite
def mixes(draw: st.DrawFn) -> tuple[list[tuple[int, int]], Steps]:
    """Requests as (length, slot), and their steps."""
    lengths = draw(st.lists(st.sampled_from([1, 2, 7, SIZE - 1, SIZE]), min_size=1, max_size=7))
    slots = draw(st.permutations(range(9)))
    return list(zip(lengths, slots, strict=False)), cut(draw, lengths)


def test_any_mix_of_prompts_chunks_and_decodes_is_each_request_alone():
    compared = Compared()

    @settings(deadline=None, derandomize=True, max_examples=120)
    @given(mixes())
    def any_mix(mix: tuple[list[tuple[int, int]], Steps]) -> None:
        sizes, steps = mix
        cache = MODEL.new_slots(9, SIZE)
        requests = [Alone(f"r{i}", ids(n, i), slot) for i, (n, slot) in enumerate(sizes)]
        for step in steps:
            rows = tuple(requests[i].row(new, samples) for i, new, samples in step)
            found = MODEL.run(Batch(rows), cache)
            wanted = [x for (i, _, _), row in zip(step, rows, strict=True) for x in requests[i].expected(row)]
            compared.check(found, wanted)

    any_mix()
    assert compared.rows > 1000
    assert compared.ties <= compared.rows / 200


@pytest.mark.parametrize("batch", [1, 2, 3, 4, 5, 31, 64])
def test_batches_of_every_size_decode_as_each_alone(batch: int):
    compared, cache = Compared(), MODEL.new_slots(batch, SIZE)
    requests = [Alone(f"r{i}", ids(SIZE, i), slot=batch - 1 - i) for i in range(batch)]
    for step in range(6):
        rows = tuple(one.row(1 + i % 9 if step == 0 else 1, 1) for i, one in enumerate(requests))
        found = MODEL.run(Batch(rows), cache)
        compared.check(found, [x for one, row in zip(requests, rows, strict=True) for x in one.expected(row)])
    assert compared.ties <= compared.rows / 100


def decode_batch(cache: SlotKV) -> Batch:
    prompts = tuple(Alone(f"r{i}", ids(9, i), slot=2 * i).row(8 - i, 1) for i in range(3))
    MODEL.run(Batch(prompts), cache)
    steps = [Alone(f"r{i}", ids(9, i), slot=2 * i, done=8 - i).row(1, 1) for i in range(3)]
    return Batch((*steps, Alone("new", ids(4, 9), slot=1).row(4, 1)))


def test_the_same_batch_again_and_each_row_alone_give_the_same():
    cache = MODEL.new_slots(6, SIZE)
    batch = decode_batch(cache)
    first = MODEL.run(batch, cache)
    assert torch.equal(MODEL.run(batch, cache), first)
    for row, wanted in zip(batch.rows, first, strict=True):
        assert torch.allclose(MODEL.run(Batch((row,)), cache)[0], wanted, atol=1e-5)


def test_a_step_that_breaks_off_can_run_again(monkeypatch: pytest.MonkeyPatch):
    cache = MODEL.new_slots(6, SIZE)
    batch = decode_batch(cache)
    wanted = MODEL.run(batch, copy_of(cache))
    with monkeypatch.context() as patch:
        patch.setattr(MODEL.layers[1], "forward", broken)
        with pytest.raises(RuntimeError, match="broken"):
            MODEL.run(batch, cache)
    assert torch.equal(MODEL.run(batch, cache), wanted)


def copy_of(cache: SlotKV) -> SlotKV:
    other = MODEL.new_slots(cache.slots, cache.size)
    other._store.copy_(cache._store)
    other._clean = list(cache._clean)
    return other


def broken(*_: Any) -> torch.Tensor:
    raise RuntimeError("broken")


def test_what_the_last_tenant_left_reaches_nobody():
    cache = MODEL.new_slots(2, SIZE)
    MODEL.run(
        Batch((Alone("a", ids(SIZE, 1), 0).row(SIZE, 1), Alone("b", ids(SIZE, 2), 1).row(SIZE, 1))), cache
    )
    cache._store.fill_(torch.nan)  # as a model that overflows would leave it
    compared = Compared()
    requests = [Alone("c", ids(5, 3), 0), Alone("d", ids(9, 4), 1)]
    for step in range(3):
        rows = tuple(one.row(len(one.ids) - 3 if step == 0 else 1, 1) for one in requests)
        found = MODEL.run(Batch(rows), cache)
        compared.check(found, [x for one, row in zip(requests, rows, strict=True) for x in one.expected(row)])
    assert compared.rows == 6


def test_a_row_past_its_slot_is_refused_and_nothing_is_written():
    cache = MODEL.new_slots(2, SIZE)
    before = cache._store.fill_(1.5).clone()
    rows = (Alone("a", ids(3, 1), 0).row(3, 1), Alone("b", ids(SIZE + 1, 2), 1).row(SIZE + 1, 1))
    with pytest.raises(ValueError, match="request b: 17 tokens, must be at most 16"):
        MODEL.run(Batch(rows), cache)
    assert torch.equal(cache._store, before)


def test_a_slot_is_never_larger_than_the_context():
    cache = MODEL.new_slots(3, 1000)
    assert cache.size == SMALL.context
    assert cache.nbytes == 2 * 2 * 3 * 2 * 24 * 4 * 4  # K and V, layers, slots, heads, tokens, size, bytes


def test_no_row_that_samples_gives_no_logits():
    row = Alone("a", ids(6, 1), 0).row(4, 0)
    assert MODEL.run(Batch((row,)), MODEL.new_slots(1, SIZE)).shape == (0, SMALL.vocab_size)


@pytest.mark.parametrize("dtype", ["bfloat16", "float16", "float64"])
def test_other_number_formats_run(dtype: str):
    model = TinyGPT(replace(SMALL, dtype=dtype))
    cache = model.new_slots(6, SIZE)
    prompts = tuple(Alone(f"r{i}", ids(9, i), slot=2 * i).row(8 - i, 1) for i in range(3))
    model.run(Batch(prompts), cache)
    steps = [Alone(f"r{i}", ids(9, i), slot=2 * i, done=8 - i).row(1, 1) for i in range(3)]
    found = model.run(Batch((*steps, Alone("new", ids(4, 9), slot=1).row(4, 1))), cache)
    assert found.dtype is getattr(torch, dtype)
    alone = [model.next_logits(ids(9, i)[: 9 - i]) for i in range(3)] + [model.next_logits(ids(4, 9))]
    assert torch.allclose(found, torch.stack(alone), atol=1e-9 if dtype == "float64" else 0.2)


def test_a_step_stays_on_the_models_device():
    # "meta" computes shapes only, and nearly everywhere refuses a tensor of another device.
    model = TinyGPT(SMALL).to("meta")
    batch = Batch((Alone("a", ids(9, 1), 0).row(1, 1), Alone("b", ids(9, 1), 3, done=2).row(3, 2)))
    assert model.run(batch, model.new_slots(4, SIZE)).device.type == "meta"
    assert model.run_padded([[0, 1], [2, 3]], model.new_padded([1, 0])).device.type == "meta"
