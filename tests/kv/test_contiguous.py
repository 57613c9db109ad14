from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from servelib.kv.contiguous import FIRST_CAPACITY, ContiguousKV
from servelib.model.attention import causal_attention
from servelib.model.config import ModelConfig

CONFIG = ModelConfig(label="x", width=8, layers=2, heads=4, kv_heads=2, head_size=6, ffn_size=4, context=200)


def qkv(tokens: int, seed: int = 0, batch: int = 1) -> list[torch.Tensor]:
    generator = torch.Generator().manual_seed(seed)
    return [torch.randn(batch, heads, tokens, 6, generator=generator) for heads in (4, 2, 2)]


@given(chunks=st.lists(st.integers(1, 70), min_size=1, max_size=6).filter(lambda c: sum(c) <= 200))
@settings(deadline=None, derandomize=True, max_examples=40)
def test_any_chunks_give_the_attention_of_the_whole(chunks: list[int]):
    cache, total, start = ContiguousKV(CONFIG), sum(chunks), 0
    whole = [qkv(total, seed=layer) for layer in range(2)]
    got: list[list[torch.Tensor]] = [[], []]
    for size in chunks:
        assert cache.length == start
        assert cache.positions(size) == slice(start, start + size)
        for layer in range(2):
            part = [x[:, :, start : start + size] for x in whole[layer]]
            got[layer].append(cache.attend(layer, *part))
        cache.advance(size)
        start += size
    for layer in range(2):
        expected = causal_attention(*whole[layer])
        assert torch.allclose(torch.cat(got[layer], 2), expected, atol=2e-6)


def test_memory_doubles_up_to_the_context_and_no_further():
    cache, capacities = ContiguousKV(CONFIG), [FIRST_CAPACITY]
    for _ in range(CONFIG.context):
        for layer in range(2):
            cache.attend(layer, *qkv(1))
        cache.advance(1)
        if cache.capacity != capacities[-1]:
            capacities.append(cache.capacity)
    assert capacities == [64, 128, 200]
    assert cache.nbytes == 2 * 2 * 2 * 200 * 6 * 4  # K and V, layers, heads, tokens, size, bytes


def test_a_long_prompt_is_given_room_at_once():
    cache = ContiguousKV(CONFIG)
    cache.attend(0, *qkv(150))
    assert cache.capacity == 150


def test_past_the_context_is_an_error_that_changes_nothing():
    cache = ContiguousKV(CONFIG)
    for layer in range(2):
        cache.attend(layer, *qkv(199))
    cache.advance(199)
    for over in (lambda: cache.positions(2), lambda: cache.attend(0, *qkv(2)), lambda: cache.advance(2)):
        with pytest.raises(ValueError, match="2 new tokens after 199 cached ones: the context is 200"):
            over()
    assert cache.length == 199
    assert cache.positions(1) == slice(199, 200)


def test_a_step_that_failed_half_way_can_be_run_again():
    cache, step = ContiguousKV(CONFIG), qkv(70)
    cache.attend(0, *step)  # layer 1 never came
    assert cache.length == 0
    for layer in range(2):
        again = cache.attend(layer, *step)
        assert torch.allclose(again, causal_attention(*step), atol=2e-6)
    cache.advance(70)
    assert cache.length == 70


def test_a_short_context_is_not_given_more_than_it_can_use():
    config = ModelConfig(label="x", layers=1, context=10)
    assert ContiguousKV(config).capacity == 10


def test_it_holds_one_request():
    with pytest.raises(ValueError, match="got 2 rows"):
        ContiguousKV(CONFIG).attend(0, *qkv(3, batch=2))


def test_it_keeps_the_models_number_format():
    cache = ContiguousKV(CONFIG, dtype=torch.bfloat16)
    assert cache.attend(0, *(x.bfloat16() for x in qkv(3))).dtype is torch.bfloat16
