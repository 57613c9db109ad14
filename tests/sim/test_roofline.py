from __future__ import annotations

from types import MappingProxyType

import pytest
from hypothesis import given
from hypothesis import strategies as st

from servelib.errors import InvalidRequestError
from servelib.model.config import REFERENCE, ModelConfig
from servelib.sim.count import count
from servelib.sim.machines import Figure, Machine, machine_named
from servelib.sim.models import model_named
from servelib.sim.roofline import RooflineCost, decode_batch_at_balance

SMALL = ModelConfig("small", vocab_size=10, width=4, layers=2, heads=2, kv_heads=1, head_size=2, ffn_size=8)


def machine(operations: float, bandwidth: float, memory: float = 1e12) -> Machine:
    peak = MappingProxyType({"float32": Figure(operations, "made up")})
    return Machine("m", "M", peak, Figure(bandwidth, "made up"), Figure(memory, "made up"))


def test_a_step_is_its_slower_resource_and_the_launch():
    step = count(SMALL, [(3, 5)])
    moves = RooflineCost(SMALL, machine(1e30, 100.0), overhead=2.0)
    assert moves.seconds(3, 5) == pytest.approx(2.0 + step.bytes / 100.0)
    computes = RooflineCost(SMALL, machine(100.0, 1e30), overhead=2.0)
    assert computes.seconds(3, 5) == pytest.approx(2.0 + step.operations / 100.0)
    assert {p.bound for p in computes.parts([(3, 5)]) if p.part.operations} == {"compute"}


def test_the_larger_time_is_taken_part_by_part():
    cost = RooflineCost(SMALL, machine(10.0, 10.0))
    parts = cost.parts([(4, 4)])
    assert cost.seconds(4, 4) == pytest.approx(sum(max(p.part.operations, p.part.bytes) / 10 for p in parts))
    assert {p.bound for p in parts} == {"compute", "memory"}


def test_shares_and_devices_scale_the_ceilings():
    full = RooflineCost(SMALL, machine(100.0, 100.0))
    assert RooflineCost(SMALL, machine(100.0, 100.0), compute=0.5, memory=0.5).seconds(3) == pytest.approx(
        2 * full.seconds(3)
    )
    assert RooflineCost(SMALL, machine(100.0, 100.0), devices=2).seconds(3) == pytest.approx(
        full.seconds(3) / 2
    )


@given(st.lists(st.tuples(st.integers(1, 30), st.integers(0, 30)), min_size=1, max_size=5))
def test_a_batch_takes_no_longer_than_its_sequences_one_by_one(batch):
    cost = RooflineCost(SMALL, machine(200.0, 100.0), overhead=0.5)
    together = cost.seconds_of(batch)
    assert together <= sum(cost.seconds(*one) for one in batch) * (1 + 1e-12)
    assert together >= max(cost.seconds(*one) for one in batch) * (1 - 1e-12)
    if len(batch) == 1:
        assert together == cost.seconds(*batch[0])


@given(st.integers(1, 100), st.integers(0, 100))
def test_more_work_never_takes_less_time(new, cached):
    cost = RooflineCost(model_named("mixtral-8x7b"), machine_named("h200"))
    assert cost.seconds(new, cached) <= cost.seconds(new + 1, cached)
    assert cost.seconds(new, cached) <= cost.seconds(new, cached + 1)


def test_a_70b_model_on_two_h100_as_in_the_text():
    cost = RooflineCost(model_named("llama3-70b"), machine_named("h100"), devices=2)
    assert cost.seconds(1, 500) == pytest.approx(141e9 / 6.7e12, rel=0.02)  # weights over bandwidth
    assert cost.cache_tokens == int((160e9 - 141_107_412_992) / 327_680)
    assert "2 x NVIDIA H100 SXM with free communication, 100% of peak operations" in cost.provenance


def test_a_figure_from_memory_is_said_under_every_table():
    model = model_named("llama3-8b")
    assert "not checked" in RooflineCost(model, machine_named("m4-max")).provenance
    assert "not checked" not in RooflineCost(model, machine_named("h100")).provenance


def test_decoding_turns_to_computing_near_the_machines_balance():
    h100, model = machine_named("h100"), model_named("llama3-8b")
    found = decode_batch_at_balance(RooflineCost(model, h100), cached=100)
    assert found == pytest.approx(h100.balance("bfloat16"), rel=0.1)
    cost = RooflineCost(model, h100)

    def bound(batch: int) -> str:
        return next(p.bound for p in cost.parts([(1, 100)] * batch) if p.part.name == "feed-forward")

    assert (bound(found - 1), bound(found)) == ("memory", "compute")
    assert decode_batch_at_balance(RooflineCost(SMALL, machine(1e30, 1.0))) is None


def test_a_model_that_does_not_fit_says_what_would():
    with pytest.raises(InvalidRequestError, match=r"needs 141\.1 GB for its weights: take 2 devices"):
        RooflineCost(model_named("llama3-70b"), machine_named("h100"))
    RooflineCost(model_named("llama3-70b"), machine_named("h100"), devices=2)


@pytest.mark.parametrize(
    ("changed", "named"),
    [
        ({"devices": 0}, "devices"),
        ({"overhead": -1.0}, "overhead"),
        ({"compute": 0.0}, "operations"),
        ({"memory": 0.0}, "bandwidth"),
    ],
)
def test_settings_that_cannot_be_are_refused(changed, named):
    with pytest.raises(InvalidRequestError, match=named):
        RooflineCost(REFERENCE, machine_named("h100"), **changed)
