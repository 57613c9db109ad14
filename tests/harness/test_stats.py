from __future__ import annotations

import random

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats as scipy_stats

from servelib.harness.stats import (
    minimum_n,
    percentile,
    percentile_interval,
    t_interval,
    t_quantile,
    unanimous_interval,
)

FLOATS = st.floats(-1e6, 1e6)


@given(st.lists(FLOATS, min_size=1, max_size=50), st.floats(0, 1))
def test_percentile_is_numpy_s_linear_one(values, q):
    assert percentile(sorted(values), q) == pytest.approx(float(np.quantile(values, q)), abs=1e-6)


def test_percentile_of_nothing_is_none():
    assert percentile([], 0.5) is None


@pytest.mark.parametrize("freedom", [1, 2, 3, 4, 5, 9, 10, 29, 30, 200])
@pytest.mark.parametrize("confidence", [0.5, 0.95, 0.999])
def test_t_quantile_is_scipy_s(freedom, confidence):
    assert t_quantile(freedom, confidence) == pytest.approx(
        float(scipy_stats.t.ppf((1 + confidence) / 2, freedom)), rel=1e-9
    )


def test_t_interval_by_hand_and_its_limits():
    low, high = t_interval([1.0, 2.0, 3.0])
    assert (low, high) == pytest.approx((2 - 2.4841377, 2 + 2.4841377), abs=1e-6)
    assert t_interval([0.9, 1.0, 0.8], lowest=0.0, highest=1.0)[1] == 1.0
    assert t_interval([1.0]) is None
    assert t_interval([2.0, 2.0]) == (2.0, 2.0)


def test_minimum_n():
    assert [minimum_n(q) for q in (0.5, 0.95, 0.99)] == [6, 72, 368]


@pytest.mark.parametrize(("n", "q"), [(6, 0.5), (24, 0.5), (72, 0.95), (200, 0.5), (400, 0.99), (5000, 0.99)])
def test_the_ranks_of_a_percentile_interval_cover_exactly(n, q):
    """Between ranks a and b lie at least 95 % of the binomial; one rank tighter on a side, less."""
    low, high = percentile_interval([float(i) for i in range(1, n + 1)], q)
    binomial = scipy_stats.binom(n, q)
    below, above = binomial.cdf(low - 1), binomial.sf(high - 1)  # quantile under the low, over the high
    assert below <= 0.025
    assert above <= 0.025
    assert binomial.cdf(low) > 0.025
    assert binomial.sf(high - 2) > 0.025


def test_too_few_samples_give_no_interval():
    assert percentile_interval([1.0] * 367, 0.99) is None
    assert percentile_interval([1.0] * 368, 0.99) == (1.0, 1.0)


def test_percentile_interval_covers_the_truth():
    rng = random.Random("coverage")
    hits = 0
    for _ in range(1000):
        low, high = percentile_interval(sorted(rng.expovariate(1.0) for _ in range(60)), 0.5)
        hits += low <= 0.6931471805599453 <= high
    assert 940 <= hits <= 985  # at least 95 %, and not much more


@pytest.mark.parametrize("n", [1, 3, 24, 600])
def test_the_interval_of_equal_samples_is_clopper_and_pearson_s(n):
    for hits in (0, n):
        exact = scipy_stats.binomtest(hits, n).proportion_ci(0.95, "exact")
        assert unanimous_interval(n, hits == n) == pytest.approx((exact.low, exact.high))
