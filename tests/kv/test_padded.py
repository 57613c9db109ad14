"""Rows padded on the left give what each gives alone, and a pad never tells."""

from __future__ import annotations

import random
from dataclasses import replace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from servelib.model.config import ModelConfig
from servelib.model.tinygpt import TinyGPT

SMALL = ModelConfig(label="small", vocab_size=50, width=24, layers=2, heads=6, kv_heads=2, head_size=4,
                    ffn_size=20, context=80, seed=3)  # fmt: skip
MODEL = TinyGPT(SMALL)


def ids(n: int, seed: int) -> list[int]:
    rng = random.Random(seed)
    return [rng.randrange(SMALL.vocab_size) for _ in range(n)]


def padded(prompts: list[list[int]], pad: int = 0) -> tuple[list[int], list[list[int]]]:
    longest = max(map(len, prompts))
    pads = [longest - len(prompt) for prompt in prompts]
    return pads, [[pad] * n + prompt for n, prompt in zip(pads, prompts, strict=True)]


def test_prompts_in_pieces_then_decodes_are_each_row_alone():
    rows = ties = 0

    @settings(deadline=None, derandomize=True, max_examples=60)
    @given(
        lengths=st.lists(st.integers(1, 70), min_size=1, max_size=5),
        pieces=st.lists(st.integers(1, 70), max_size=3),
        steps=st.integers(0, 10),
    )
    def any_rows(lengths: list[int], pieces: list[int], steps: int) -> None:
        nonlocal rows, ties
        texts = [ids(n + steps, i) for i, n in enumerate(lengths)]
        pads, prompts = padded([text[:n] for text, n in zip(texts, lengths, strict=True)])
        cache, done = MODEL.new_padded(pads), 0
        caches = [MODEL.new_cache() for _ in texts]
        while done < max(lengths):
            piece = pieces.pop() if pieces else max(lengths)
            found = MODEL.run_padded([row[done : done + piece] for row in prompts], cache)
            done += piece
        wanted = [MODEL.next_logits(t[:n], c) for t, n, c in zip(texts, lengths, caches, strict=True)]
        for step in range(steps + 1):
            if step:
                new = [text[n + step - 1] for text, n in zip(texts, lengths, strict=True)]
                found = MODEL.run_padded([[i] for i in new], cache)
                wanted = [MODEL.next_logits([i], c) for i, c in zip(new, caches, strict=True)]
            for one, other in zip(found, wanted, strict=True):
                rows += 1
                assert torch.allclose(one, other, atol=1e-5)
                first, second = other.topk(2).values.tolist()
                if first - second < 2e-5:
                    ties += 1
                else:
                    assert one.argmax() == other.argmax()
        assert cache.length == max(lengths) + steps

    any_rows()
    assert rows > 500
    assert ties <= rows / 200


def test_what_stands_in_a_pad_changes_nothing_and_nothing_is_nan():
    prompts = [ids(3, 1), ids(30, 2), ids(1, 3)]
    pads, rows = padded(prompts)
    first = MODEL.run_padded(rows, MODEL.new_padded(pads))
    assert torch.equal(MODEL.run_padded(padded(prompts, pad=7)[1], MODEL.new_padded(pads)), first)
    everything, cache = MODEL(torch.tensor(rows), MODEL.new_padded(pads))
    assert everything.isfinite().all()
    assert cache is not None


def test_positions_are_the_tokens_own():
    cache = MODEL.new_padded([0, 2, 3])
    assert cache.positions(4).tolist() == [[0, 1, 2, 3], [0, 0, 0, 1], [0, 0, 0, 0]]
    cache.advance(4)
    assert cache.positions(1).tolist() == [[4], [2], [1]]


def test_a_step_that_breaks_off_can_run_again(monkeypatch: pytest.MonkeyPatch):
    pads, rows = padded([ids(3, 1), ids(70, 2)])
    cache = MODEL.new_padded(pads)
    wanted = MODEL.run_padded(rows, MODEL.new_padded(pads))
    with monkeypatch.context() as patch:
        patch.delattr(MODEL.layers[1], "down")
        with pytest.raises(AttributeError):
            MODEL.run_padded(rows, cache)
    assert cache.length == 0
    assert torch.equal(MODEL.run_padded(rows, cache), wanted)


def test_past_the_context_is_refused():
    cache = MODEL.new_padded([0, 1])
    MODEL.run_padded([[1] * 80] * 2, cache)
    with pytest.raises(ValueError, match="1 new tokens after 80 cached ones: the context is 80"):
        MODEL.run_padded([[1]] * 2, cache)
    assert cache.length == 80
    assert cache.nbytes == 2 * 2 * 2 * 2 * 80 * 4 * 4  # K and V, layers, rows, heads, columns, size, bytes


@pytest.mark.parametrize("dtype", ["bfloat16", "float16", "float64"])
def test_other_number_formats_run(dtype: str):
    model = TinyGPT(replace(SMALL, dtype=dtype))
    prompts = [ids(5, 1), ids(9, 2)]
    pads, rows = padded(prompts)
    cache = model.new_padded(pads)
    model.run_padded(rows, cache)
    found = model.run_padded([[1], [2]], cache)
    assert found.dtype is getattr(torch, dtype)
    alone = [model.next_logits([*prompts[0], 1]), model.next_logits([*prompts[1], 2])]
    assert torch.allclose(found, torch.stack(alone), atol=1e-9 if dtype == "float64" else 0.2)
