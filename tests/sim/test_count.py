from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.flop_counter import FlopCounterMode

from servelib.errors import InvalidRequestError
from servelib.model import linear
from servelib.model.config import REFERENCE, ModelConfig
from servelib.model.tinygpt import TinyGPT
from servelib.sim.count import count
from servelib.sim.models import model_named
from servelib.sim.shape import Experts, Shape

SMALL = ModelConfig("small", vocab_size=10, width=4, layers=2, heads=2, kv_heads=1, head_size=2, ffn_size=8)
BATCHES = st.lists(st.tuples(st.integers(1, 50), st.integers(0, 50)), min_size=1, max_size=6)


def test_operations_of_one_small_step_counted_by_hand():
    # 3 new tokens behind 5: 6, 7 and 8 pairs.
    assert count(SMALL, [(3, 5)]).operations_by_name() == {
        "qkv": 2 * 3 * 2 * 4 * (4 + 2 + 2),  # tokens, layers, width, rows
        "attention scores": 2 * (6 + 7 + 8) * 2 * 2 * 2,  # pairs, layers, heads, head size
        "attention values": 2 * (6 + 7 + 8) * 2 * 2 * 2,
        "output projection": 2 * 3 * 2 * 4 * 4,
        "feed-forward": 2 * 3 * 2 * 3 * 4 * 8,
        "output matrix": 2 * 1 * 4 * 10,  # only where a token is sampled
    }


def test_bytes_of_one_small_step_counted_by_hand():
    matrices = 2 * (4 * 8 + 4 * 4 + 3 * 4 * 8) + 4 * 10
    layer = (4 + 8) + 2 * 4 + (4 + 4) + (4 + 16 + 8 + 4)  # qkv, attention, projection, feed-forward
    assert count(SMALL, [(3, 5)]).bytes_by_kind() == {
        "weights": 4 * (matrices + 3 * 4),  # and 3 rows of the embedding
        "kv_read": 5 * 2 * 2 * 1 * 2 * 4,  # tokens, key and value, layers, KV heads, head size, float32
        "kv_written": 3 * 2 * 2 * 1 * 2 * 4,
        "activations": 4 * (3 * 4 + 2 * 3 * layer + 4 + 10),
    }


@pytest.fixture(scope="module")
def model() -> TinyGPT:
    return TinyGPT(REFERENCE)


@pytest.mark.parametrize(("new", "cached"), [(1, 0), (1, 40), (32, 0), (5, 20)])
def test_operations_agree_with_those_that_pytorch_counts(model, new, cached, monkeypatch):
    # PyTorch counts shapes that reach a matrix product. Its CPU attention kernel and oneDNN's products are
    # not in its list, so both run here by plain products; those of attention compute every pair, also what
    # causality throws away.
    monkeypatch.setattr(linear, "onednn", lambda: None)
    cache = model.new_cache()
    if cached:
        model.next_logits(list(range(cached)), cache)
    with sdpa_kernel(SDPBackend.MATH), FlopCounterMode(display=False) as counter:
        model.next_logits(list(range(new)), cache)
    seen = {str(name): flops for name, flops in counter.get_flop_counts()["Global"].items()}
    found = count(REFERENCE, [(new, cached)]).operations_by_name()
    attention = found.pop("attention scores") + found.pop("attention values")
    assert seen["aten.mm"] == sum(found.values())
    wasted = (new * (cached + new)) / (new * cached + new * (new + 1) / 2)
    assert seen["aten.bmm"] == attention * wasted


def test_all_weights_are_read_once_a_step(model):
    read = count(REFERENCE, [(1, 0)]).bytes_by_kind()["weights"]
    gains = REFERENCE.width * (2 * REFERENCE.layers + 1)  # of the norms, which are not counted
    table = REFERENCE.width * (REFERENCE.vocab_size - 1)  # all but one row of the embedding
    assert read == sum(p.numel() * 4 for p in model.parameters()) - 4 * (gains + table)


@given(BATCHES)
def test_a_batch_does_the_work_of_its_sequences_and_reads_the_weights_once(batch):
    together, alone = count(SMALL, batch), [count(SMALL, [one]) for one in batch]
    assert together.operations == pytest.approx(sum(one.operations for one in alone))
    rows = 4 * SMALL.width * sum(new for new, _ in batch)
    matrices = alone[0].bytes_by_kind()["weights"] - 4 * SMALL.width * batch[0][0]
    assert together.bytes_by_kind()["weights"] == pytest.approx(matrices + rows)
    for kind in ("kv_read", "kv_written", "activations"):
        assert together.bytes_by_kind()[kind] == pytest.approx(sum(o.bytes_by_kind()[kind] for o in alone))


def test_a_chunk_that_is_not_the_last_needs_no_logits():
    chunk = count(SMALL, [(3, 5)], sampled=0)
    assert "output matrix" not in chunk.operations_by_name()
    whole = count(SMALL, [(3, 5)])
    assert whole.bytes - chunk.bytes == 4 * (4 * 10 + 4 + 10)


def test_decoding_is_two_operations_a_weight_and_under_one_a_byte():
    step = count(model_named("llama3-70b"), [(1, 0)])
    assert step.operations == pytest.approx(2 * 70.55e9, rel=0.02)
    assert 0.9 < step.intensity < 1.01


def test_a_mixture_runs_the_active_experts_and_reads_those_that_are_touched():
    mixture = Shape("m", width=4, layers=1, heads=1, kv_heads=1, head_size=2, experts=Experts(4, 1, 8))
    one = next(p for p in count(mixture, [(1, 0)]).parts if p.name == "feed-forward")
    assert (one.operations, one.weights) == (2 * (3 * 4 * 8 + 4 * 4), 4 * (3 * 4 * 8 + 4 * 4))
    two = next(p for p in count(mixture, [(2, 0)]).parts if p.name == "feed-forward")
    assert two.weights == pytest.approx(4 * (1.75 * 3 * 4 * 8 + 4 * 4))  # half of the time both meet: 7 / 4
    many = next(p for p in count(mixture, [(1000, 0)]).parts if p.name == "feed-forward")
    assert many.weights == pytest.approx(4 * (4 * 3 * 4 * 8 + 4 * 4))


@pytest.mark.parametrize(
    ("batch", "sampled", "named"),
    [([(0, 3)], None, "new tokens"), ([(1, -1)], None, "cached tokens"), ([(2, 0)], 3, "sampled")],
)
def test_a_step_that_cannot_be_is_refused(batch, sampled, named):
    with pytest.raises(InvalidRequestError, match=named):
        count(SMALL, batch, sampled=sampled)
