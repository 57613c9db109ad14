from __future__ import annotations

import json
import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from servelib.errors import InvalidRequestError
from servelib.sim.cost import StepCost, attention_pairs, load_cost, reference_cost


def test_seconds_by_hand():
    cost = StepCost(overhead=1.0, per_token=0.1, per_pair=0.01, per_cached=0.001)
    assert cost.seconds(2, 10) == pytest.approx(1.0 + 0.2 + 0.01 * (2 * 10 + 3) + 0.01)
    assert cost.seconds(1) == pytest.approx(1.11)


def test_a_batch_pays_the_overhead_once():
    cost = StepCost(overhead=1.0, per_token=0.1, per_pair=0.01, per_cached=0.001)
    batch = [(2, 10), (1, 5), (4, 0)]
    together = cost.seconds_of(batch)
    assert together == pytest.approx(sum(cost.seconds(*each) for each in batch) - 2 * cost.overhead)
    assert cost.seconds_of([(2, 10)]) == cost.seconds(2, 10)


@given(st.integers(1, 40), st.integers(0, 40))
def test_pairs_are_counted_one_by_one(new, cached):
    assert attention_pairs(new, cached) == sum(cached + position + 1 for position in range(new))


@pytest.mark.parametrize("bad", [-1e-9, math.nan, math.inf])
def test_a_cost_below_nothing_is_refused(bad):
    with pytest.raises(InvalidRequestError, match="per_token"):
        StepCost(overhead=0.0, per_token=bad)


def test_the_stored_cost_is_of_the_reference_model_and_says_where_from():
    cost = reference_cost()
    assert "fitted on" in cost.provenance
    assert 0 < cost.seconds(1, 64) < cost.seconds(64) < 1.0


@pytest.mark.parametrize(
    "text",
    [
        "",
        "{",
        "[]",
        "3",
        "{}",
        '{"overhead": "x", "per_token": 0, "per_pair": 0, "per_cached": 0}',
        '{"overhead": -1, "per_token": 0, "per_pair": 0, "per_cached": 0}',
        '{"overhead": 0, "per_token": 0, "per_pair": 0, "per_cached": 0}',
        '{"overhead": NaN, "per_token": 0, "per_pair": 0, "per_cached": 0}',
    ],
)
def test_a_bad_cost_file_is_one_typed_error(tmp_path, text):
    path = tmp_path / "cost.json"
    path.write_text(text)
    with pytest.raises(InvalidRequestError):
        load_cost(path)


def test_a_cost_file_is_read(tmp_path):
    path = tmp_path / "cost.json"
    path.write_text(json.dumps({"overhead": 0.5, "per_token": 1, "per_pair": 0, "per_cached": 0}))
    assert load_cost(path) == StepCost(0.5, 1.0, provenance="costs from cost.json")
    with pytest.raises(InvalidRequestError, match="cost file"):
        load_cost(tmp_path / "absent.json")
