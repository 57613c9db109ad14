"""The fused kernels give what TinyGPT gives on PyTorch's, for any batch, shape and number of threads."""

from __future__ import annotations

import copy
import pickle
import random
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from steps import Steps, cut

from servelib.clock import WallClock
from servelib.engine.batch import Batch, Row
from servelib.engine.continuous import ContinuousEngine
from servelib.engine.registry import make_engine
from servelib.engine.scheduler import Limits, Scheduler
from servelib.errors import KernelError
from servelib.fused.cache import TiledKV
from servelib.fused.kernels import Kernels
from servelib.fused.model import PIECE, FusedGPT
from servelib.kv.pool import SlotPool
from servelib.model import linear
from servelib.model.config import REFERENCE, ModelConfig
from servelib.model.tinygpt import TinyGPT
from servelib.request import Request, RequestState, SamplingParams
from servelib.spans import Stage

SMALL = ModelConfig(label="small", vocab_size=50, width=24, layers=2, heads=4, kv_heads=2, head_size=16,
                    ffn_size=20, context=64, seed=3)  # fmt: skip


def drawn(config: ModelConfig) -> TinyGPT:
    """A model whose gains are drawn, too: of ones, nobody sees which is taken."""
    model, make = TinyGPT(config), torch.Generator().manual_seed(5)
    for name, gain in model.named_parameters():
        if "norm" in name:
            gain.data.copy_(1 + 0.3 * torch.randn(gain.shape, generator=make))
    return model


MODEL = drawn(SMALL)
FUSED = FusedGPT(MODEL)
CLOSE = 2e-5  # logits are about 1 in size


def row(slot: int, start: int, ids: Sequence[int], samples: int) -> Row:
    return Row(RequestState(Request(f"r{slot}", (1,))), slot, start, ids, samples, Stage.PREFILL)


def ids(n: int, seed: int, vocab_size: int = SMALL.vocab_size) -> list[int]:
    rng = random.Random(seed)
    return [rng.randrange(vocab_size) for _ in range(n)]


def nan_filled(cache: TiledKV) -> TiledKV:
    """As if every tenant before had left the worst there is."""
    cache.held.fill_(torch.nan)
    return cache


SIZE = 40


@st.composite
def histories(draw: st.DrawFn) -> Steps:
    """Steps of requests of lengths around a tile's ends."""
    lengths = draw(st.lists(st.sampled_from([1, 2, 15, 16, 17, 31, 32, 33, SIZE]), min_size=1, max_size=7))
    return cut(draw, lengths)


@pytest.mark.parametrize("threads", [1, 2])
def test_any_mix_of_prompts_chunks_and_decodes_is_that_of_pytorch(threads: int):
    compared = 0
    torch.set_num_threads(threads)

    @settings(deadline=None, derandomize=True, max_examples=60)
    @given(histories())
    def any_steps(history: Steps) -> None:
        nonlocal compared
        one, other = nan_filled(FUSED.new_slots(8, SIZE)), MODEL.new_slots(8, SIZE)
        done = [0] * 8
        for step in history:
            rows = []
            for i, new, samples in step:
                rows.append(row(7 - i, done[i], ids(SIZE, i)[done[i] : done[i] + new], samples))
                done[i] += new
            found, wanted = FUSED.run(Batch(tuple(rows)), one), MODEL.run(Batch(tuple(rows)), other)
            assert found.shape == wanted.shape
            assert torch.allclose(found, wanted, atol=CLOSE)
            compared += len(found)

    any_steps()
    assert compared > 500


SHAPES = {
    "one head": {"heads": 1, "kv_heads": 1},
    "no groups": {"heads": 4, "kv_heads": 4},
    "groups of 8": {"heads": 8, "kv_heads": 1},
    "groups of 3": {"heads": 6, "kv_heads": 2},
    "heads of 32": {"head_size": 32},
    "heads of 48": {"head_size": 48},
    "heads of 64": {"head_size": 64},
    "heads of 128": {"head_size": 128, "heads": 2},
    "one layer": {"layers": 1},
    "tied output": {"tied_output": True},
    "odd sizes": {"width": 37, "ffn_size": 53, "vocab_size": 41},
    "rounder norm": {"norm_eps": 0.1},
}


@pytest.mark.parametrize("shape", SHAPES)
def test_every_shape_of_model(shape: str):
    model = drawn(replace(SMALL, **SHAPES[shape]))
    fused, vocab = FusedGPT(model), model.config.vocab_size
    one, other = nan_filled(fused.new_slots(5, 64)), model.new_slots(5, 64)
    prompts = Batch(tuple(row(i, 0, ids(n, i, vocab), 1) for i, n in enumerate((63, 1, 16, 40))))
    decodes = Batch(tuple(row(i, n, ids(1, i, vocab), 1) for i, n in enumerate((63, 1, 16, 40))))
    for batch in (prompts, decodes):
        assert torch.allclose(fused.run(batch, one), model.run(batch, other), atol=CLOSE * 3)


@pytest.mark.parametrize("batch", [1, 2, 3, 4, 5, 16, 17, 64, 65])
def test_batches_of_every_size(batch: int):
    one, other = nan_filled(FUSED.new_slots(batch, 24)), MODEL.new_slots(batch, 24)
    for start, new in ((0, 5), (5, 1), (6, 1)):
        rows = Batch(tuple(row(i, start, ids(9, i)[start : start + new], 1) for i in range(batch)))
        assert torch.allclose(FUSED.run(rows, one), MODEL.run(rows, other), atol=CLOSE)


@pytest.mark.parametrize("tokens", [PIECE - 1, PIECE, PIECE + 1, 2 * PIECE + 1])
@pytest.mark.parametrize("every", [True, False], ids=["all sampled", "a few sampled"])
def test_steps_of_more_than_one_piece(tokens: int, every: bool):
    model = drawn(replace(SMALL, context=2048))
    fused = FusedGPT(model)
    rows = Batch((row(1, 0, ids(tokens, 1), tokens if every else 2), row(0, 0, ids(3, 2), 3 if every else 0)))
    found = fused.run(rows, nan_filled(fused.new_slots(2, 2048)))
    wanted = model.run(rows, model.new_slots(2, 2048))
    assert found.shape == wanted.shape
    assert torch.allclose(found, wanted, atol=CLOSE * 3)


def test_a_step_that_samples_nothing_still_fills_the_cache():
    one, other = nan_filled(FUSED.new_slots(1, 32)), MODEL.new_slots(1, 32)
    first, second = Batch((row(0, 0, ids(20, 1)[:9], 0),)), Batch((row(0, 9, ids(20, 1)[9:], 1),))
    assert FUSED.run(first, one).shape == (0, SMALL.vocab_size)
    MODEL.run(first, other)
    assert torch.allclose(FUSED.run(second, one), MODEL.run(second, other), atol=CLOSE)


def test_the_same_batch_again_gives_the_same_bits():
    cache = nan_filled(FUSED.new_slots(3, 32))
    batch = Batch(tuple(row(i, 0, ids(9 + i, i), 1) for i in range(3)))
    assert torch.equal(FUSED.run(batch, cache), FUSED.run(batch, cache))


def test_a_row_beyond_its_slot_is_refused_before_anything_is_written():
    cache = nan_filled(FUSED.new_slots(2, 20))  # there is memory for 32: whole tiles
    with pytest.raises(ValueError, match="request r1: 21 tokens, must be at most 20: a slot"):
        FUSED.run(Batch((row(0, 0, ids(3, 0), 1), row(1, 0, ids(21, 1), 1))), cache)
    assert cache.held.isnan().all()
    assert FUSED.run(Batch((row(1, 0, ids(20, 1), 1),)), cache).isfinite().all()


@pytest.mark.parametrize(("slot", "start"), [(2, 0), (-1, 0), (0, -1), (10**9, 0)])
def test_a_row_of_no_slot_is_refused_before_anything_is_written(slot: int, start: int):
    cache = nan_filled(FUSED.new_slots(2, 32))
    with pytest.raises(
        ValueError, match=f"request r{slot}: slot {slot} from token {start}, must be of 2 slots"
    ):
        FUSED.run(Batch((row(0, 0, ids(3, 0), 1), row(slot, start, ids(3, 1), 1))), cache)
    assert cache.held.isnan().all()


def test_another_models_cache_is_refused():
    for change in ({"layers": 1}, {"kv_heads": 1}, {"head_size": 32}, {"context": 128}):
        other = FusedGPT(TinyGPT(replace(SMALL, **change)))
        with pytest.raises(
            ValueError, match="made for another model, must be of this one: take its new_slots"
        ):
            FUSED.run(Batch((row(0, 0, [1], 1),)), other.new_slots(1, 16))


@pytest.mark.parametrize("again", [copy.deepcopy, copy.copy, lambda model: pickle.loads(pickle.dumps(model))])
def test_a_copy_has_kernels_of_its_own(again: Callable[[FusedGPT], FusedGPT]):
    fused, batch = again(FUSED), Batch((row(0, 0, ids(9, 1), 1),))
    assert fused._kernels is not FUSED._kernels
    assert torch.equal(fused.run(batch, fused.new_slots(1, 16)), FUSED.run(batch, fused.new_slots(1, 16)))


def test_defaults_of_the_process_change_nothing():
    batch = Batch((row(0, 0, ids(9, 1), 1),))
    wanted = FUSED.run(batch, FUSED.new_slots(1, 16))
    torch.set_default_dtype(torch.float64)
    try:
        with torch.device("meta"):
            found = FUSED.run(batch, FUSED.new_slots(1, 16))
    finally:
        torch.set_default_dtype(torch.float32)
    assert torch.equal(found, wanted)


def test_threads_of_python_and_models_do_not_meet():
    """As in a server, whose engine runs in a thread of its own, here three at once."""
    torch.set_num_threads(2)
    other = TinyGPT(replace(SMALL, heads=8, kv_heads=1, head_size=32, seed=9))
    pairs = [(FUSED, MODEL), (FusedGPT(other), other), (FUSED, MODEL)]

    def close(at: int) -> bool:
        fused, model = pairs[at]
        one, two, found = fused.new_slots(5, 40), model.new_slots(5, 40), []
        for step in range(20):
            batch = Batch(tuple(row(i, 0, ids(1 + (7 * step + 5 * i + at) % 30, i), 1) for i in range(5)))
            found.append(torch.allclose(fused.run(batch, one), model.run(batch, two), atol=CLOSE))
        return all(found)

    with ThreadPoolExecutor(3) as pool:
        assert all(pool.map(close, range(3)))


def test_a_slot_is_at_most_the_context_and_its_memory_is_counted():
    cache = FUSED.new_slots(3, 1000)
    assert (cache.slots, cache.size, cache.tiles) == (3, 64, 4)
    assert cache.nbytes == 3 * SMALL.layers * 64 * 2 * SMALL.kv_heads * SMALL.head_size * 4


def test_many_tokens_go_through_onednn_and_few_do_not(monkeypatch: pytest.MonkeyPatch):
    products: list[int] = []

    def product(x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
        products.append(len(x))
        return torch.nn.functional.linear(x, weight)

    monkeypatch.setattr("servelib.fused.model.onednn", lambda: product)
    monkeypatch.setattr("servelib.fused.model.reorder", lambda weight: weight)
    fused = FusedGPT(MODEL)
    cache = nan_filled(fused.new_slots(1, 32))
    fused.run(Batch((row(0, 0, ids(30, 1), 2),)), cache)
    assert products == [30] * 5  # the first layer's four, and the second's first: then only two are left
    fused.run(Batch((row(0, 30, [1], 1),)), cache)
    assert len(products) == 5


def test_without_onednn_the_products_are_pytorchs(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("servelib.fused.model.onednn", lambda: None)
    fused = FusedGPT(MODEL)
    batch = Batch((row(0, 0, ids(30, 1), 2),))
    found = fused.run(batch, nan_filled(fused.new_slots(1, 32)))
    assert torch.allclose(found, MODEL.run(batch, MODEL.new_slots(1, 32)), atol=CLOSE)
    assert linear.onednn() is None or not any(
        hasattr(matrix, "_packed") for layer in fused._layers for matrix in (layer.qkv, layer.gate_up)
    )


def test_conditions_say_that_kernels_have_one_thread(monkeypatch: pytest.MonkeyPatch, tmp_path: Path):
    without = tmp_path / "cc"
    without.write_text('#!/bin/sh\ncase "$*" in *-fopenmp\\ *) exit 1;; esac\nexec cc "$@"\n')
    without.chmod(0o755)
    monkeypatch.setenv("CC", str(without))
    assert FusedGPT(MODEL).config.label == "small, fused kernels without OpenMP"


def test_conditions_name_the_kernels():
    assert FUSED.config.label.startswith("small, fused kernels")
    assert MODEL.config.label == "small"


def with_a_layer_in(dtype: torch.dtype) -> TinyGPT:
    model = TinyGPT(SMALL)
    model.layers[1].to(dtype)
    return model


@pytest.mark.parametrize(
    ("model", "complaint"),
    [
        (TinyGPT(replace(SMALL, dtype="bfloat16")), "got bfloat16 on cpu, must be float32 on cpu"),
        (with_a_layer_in(torch.bfloat16), "got bfloat16 on cpu, must be float32 on cpu"),
        (TinyGPT(SMALL).to("meta"), "got float32 on meta, must be float32 on cpu"),
        (TinyGPT(replace(SMALL, head_size=24)), "got heads of 24 numbers, must be a multiple of 16"),
    ],
)
def test_what_the_kernels_cannot_do_is_refused_in_one_line(model: TinyGPT, complaint: str):
    with pytest.raises(KernelError, match=complaint) as error:
        FusedGPT(model)
    assert "\n" not in str(error.value)


def test_every_engine_gives_the_reference_models_tokens():
    model = TinyGPT(replace(REFERENCE, layers=2, context=256))
    fused = FusedGPT(model)
    sampling = [SamplingParams(max_tokens=8, ignore_eos=True), SamplingParams(max_tokens=5, temperature=0.8)]
    found = {}
    for name, runs in (("naive", model), ("continuous", fused), ("static", fused), ("cached", fused)):
        engine, tokens = make_engine(name, runs, WallClock()), dict[str, list[int]]()
        for i in range(20):
            prompt = tuple(ids(3 + 5 * i, i, REFERENCE.vocab_size))
            engine.add_request(Request(f"{i}", prompt, sampling[i % 2]))
        while engine.has_work:
            for output in engine.step():
                tokens.setdefault(output.request_id, []).extend(output.token_ids)
        found[name] = tokens
    for name in ("continuous", "static", "cached"):
        assert found[name] == found["naive"]


class Stingy(SlotPool):
    """Refuses every seventh request to grow: somebody loses its slot, and computes its tokens again."""

    asked = 0

    def grow(self, state: RequestState, tokens: int) -> bool:
        self.asked += 1
        return self.asked % 7 != 0 and super().grow(state, tokens)


def test_slots_change_hands_by_ends_aborts_and_preemption():
    fused = FusedGPT(TinyGPT(REFERENCE))
    rng, preemptions, compared = random.Random(1), 0, 0
    naive = make_engine("cached", TinyGPT(REFERENCE), WallClock())
    for threads in (1, 2):
        torch.set_num_threads(threads)
        scheduler = Scheduler(Stingy(3, 128), Limits(3, 40))
        engine = ContinuousEngine(fused, nan_filled(fused.new_slots(3, 128)), scheduler)
        requests = [
            Request(
                f"{threads}-{i}",
                tuple(ids(rng.choice([1, 15, 16, 17, 40]), i)),
                SamplingParams(max_tokens=rng.randint(1, 12)),
            )
            for i in range(16)
        ]
        gone = {f"{threads}-{i}" for i in (2, 5, 6)}
        found: dict[str, list[int]] = {}
        wanted: dict[str, list[int]] = {}
        for request in requests:
            engine.add_request(request)
            if request.request_id not in gone:
                naive.add_request(request)
        while engine.has_work:
            for output in engine.step():
                found.setdefault(output.request_id, []).extend(output.token_ids)
                if output.request_id in gone:
                    engine.abort(output.request_id)
        while naive.has_work:
            for output in naive.step():
                wanted.setdefault(output.request_id, []).extend(output.token_ids)
        assert {name: tokens for name, tokens in found.items() if name not in gone} == wanted
        preemptions += scheduler.preemptions
        compared += sum(map(len, wanted.values()))
    assert preemptions > 5
    assert compared > 100


def norm_of(x: torch.Tensor, gain: torch.Tensor) -> torch.Tensor:
    return torch.nn.functional.rms_norm(x, x.shape[-1:], gain, SMALL.norm_eps)


@pytest.mark.parametrize("threads", [1, 2, 3])
@pytest.mark.parametrize(("n", "width"), [(1, 1), (3, 37), (65, 24), (200, 256)])
def test_adding_and_normalising(threads: int, n: int, width: int):
    torch.set_num_threads(threads)
    kernels, make = Kernels(SMALL), torch.Generator().manual_seed(n)
    x, delta, gain = (torch.randn(shape, generator=make) for shape in ((n, width), (n, width), (width,)))
    wanted, y = x + delta, torch.full((n, width), torch.nan)
    kernels.add_rms_norm(x, None, gain, y)
    assert torch.allclose(y, norm_of(x, gain), atol=1e-6)
    kernels.add_rms_norm(x, delta, gain, y)
    assert torch.equal(x, wanted)
    assert torch.allclose(y, norm_of(wanted, gain), atol=1e-6)


@pytest.mark.parametrize("threads", [1, 2, 3])
def test_the_gate_over_the_whole_range_of_numbers(threads: int):
    torch.set_num_threads(threads)
    gates = torch.cat(
        (torch.linspace(-100, 100, 4001), torch.tensor([0.0, -0.0, 1e-30, -3e38, 3e38, torch.inf]))
    )
    both = torch.stack((gates, torch.full_like(gates, 1.5)), -1)  # rows of one gate and its partner
    y = torch.empty(len(gates), 1)
    Kernels(SMALL).silu_and_mul(both, y)
    wanted = (torch.nn.functional.silu(gates.double()) * 1.5).float()
    assert torch.allclose(y[:, 0], wanted, rtol=3e-7, atol=1e-30)


@pytest.mark.parametrize("size", [1e5, 1e12, 1e16, 1e17])
def test_scores_of_any_size(size: float):
    """Up to the largest float32: however low all scores are, a place that may not be seen gets nothing."""
    model = TinyGPT(SMALL)
    for layer in model.layers:
        layer.qkv.data[: (SMALL.heads + SMALL.kv_heads) * SMALL.head_size] *= size
    fused, batch = FusedGPT(model), Batch((row(0, 0, ids(30, 1), 30),))
    found = fused.run(batch, nan_filled(fused.new_slots(1, 32)))
    assert torch.allclose(found, model.run(batch, model.new_slots(1, 32)), atol=CLOSE)


def test_a_number_that_is_none_stays_visible():
    both, y = torch.tensor([[torch.nan, 1.0]]), torch.zeros(1, 1)
    Kernels(SMALL).silu_and_mul(both, y)
    assert y.isnan().all()
    broken = TinyGPT(SMALL)
    broken.layers[0].qkv.data[0, 0] = torch.nan
    fused = FusedGPT(broken)
    assert fused.run(Batch((row(0, 0, [1, 2, 3, 4], 1),)), fused.new_slots(1, 16)).isnan().all()
