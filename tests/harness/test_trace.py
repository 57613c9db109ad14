from __future__ import annotations

import math
import subprocess
import sys
from dataclasses import replace
from statistics import fmean, pvariance

import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats as scipy_stats

from servelib.errors import InvalidRequestError
from servelib.harness.trace import REFERENCE_WORKLOAD, Poisson, Uniform, Workload, make_trace


def gaps_of(rate: float, n: int, seed: int) -> list[float]:
    times = [r.scheduled for r in make_trace(Poisson(rate), n, seed=seed).requests]
    return [b - a for a, b in zip([0.0, *times], times, strict=False)]


def test_arrivals_are_poisson():
    gaps = gaps_of(4.0, 4000, seed=3)
    assert scipy_stats.kstest(gaps, "expon", args=(0, 1 / 4.0)).pvalue > 0.01
    assert pvariance(gaps) / fmean(gaps) ** 2 == pytest.approx(1.0, abs=0.1)
    assert abs(scipy_stats.pearsonr(gaps[:-1], gaps[1:]).statistic) < 3 / math.sqrt(len(gaps))
    counts = [0] * 900
    total = 0.0
    for gap in gaps:
        total += gap
        if total < len(counts):
            counts[int(total)] += 1
    assert pvariance(counts) / fmean(counts) == pytest.approx(1.0, abs=0.15)


def test_the_first_arrival_waits_one_gap_and_no_gap_is_clipped():
    firsts = [make_trace(Poisson(2.0), 1, seed=seed).requests[0].scheduled for seed in range(3000)]
    assert scipy_stats.kstest(firsts, "expon", args=(0, 0.5)).pvalue > 0.01
    assert max(gaps_of(1.0, 4000, seed=0)) > 6.0  # an exponential passes six means in 4,000 draws


def test_the_schedule_is_not_rescaled_to_end_at_n_over_rate():
    ends = [make_trace(Poisson(4.0), 24, seed=seed).requests[-1].scheduled for seed in range(200)]
    assert pvariance(ends) == pytest.approx(24 / 16, rel=0.25)


@given(st.floats(0.01, 1000), st.floats(0.01, 1000), st.integers(-5, 50))
def test_another_rate_changes_no_prompt_and_no_length(rate, other, seed):
    workload = Workload(requests=4, seed=seed)
    a, b = workload.trace(rate), workload.trace(other)
    for one, two in zip(a.requests, b.requests, strict=True):
        assert (one.prompt_ids, one.output_tokens) == (two.prompt_ids, two.output_tokens)
        assert one.scheduled * rate == pytest.approx(two.scheduled * other)


def test_another_length_law_changes_no_arrival():
    a = REFERENCE_WORKLOAD.trace(4.0)
    b = replace(REFERENCE_WORKLOAD, prompt=Uniform(1, 5)).trace(4.0)
    assert [r.scheduled for r in a.requests] == [r.scheduled for r in b.requests]
    assert [r.output_tokens for r in a.requests] == [r.output_tokens for r in b.requests]


def test_lengths_are_in_range_and_prompts_are_exact_text():
    trace = make_trace(Poisson(1.0), 2000)
    assert {len(r.prompt_ids) for r in trace.requests} == set(range(32, 97))
    assert {r.output_tokens for r in trace.requests} == set(range(16, 49))
    assert all(bytes(r.prompt_ids).decode("ascii").isprintable() for r in trace.requests)


def test_run_k_is_the_trace_of_seed_plus_k_and_seed_zero_is_a_seed():
    workload = Workload(requests=5, seed=0)
    assert workload.trace(4.0, run=3).requests == make_trace(Poisson(4.0), 5, seed=3).requests
    assert workload.trace(4.0).seed == 0
    assert workload.trace(4.0).hash != workload.trace(4.0, run=1).hash
    assert workload.trace(4.0).hash == Workload(requests=5, seed=0).trace(4.0).hash


def test_warmup_prompts_are_no_run_s_prompts():
    workload = Workload(requests=50)
    warm = {r.prompt_ids for r in workload.warmup(50).requests}
    assert not warm & {r.prompt_ids for run in range(3) for r in workload.trace(4.0, run).requests}


def test_the_hash_is_the_same_in_every_process_and_for_ever():
    code = "from servelib.harness.trace import *; print(REFERENCE_WORKLOAD.trace(4.0).hash)"
    found = [
        subprocess.run(
            [sys.executable, "-c", code],
            env={"PYTHONHASHSEED": seed},
            capture_output=True,
            text=True,
            check=True,
        ).stdout.strip()
        for seed in ("1", "2")
    ]
    assert found == [REFERENCE_WORKLOAD.trace(4.0).hash] * 2


@pytest.mark.parametrize(
    ("make", "field"),
    [
        (lambda: Poisson(0.0), "rate"),
        (lambda: Poisson(-1.0), "rate"),
        (lambda: Poisson(math.nan), "rate"),
        (lambda: Poisson(math.inf), "rate"),
        (lambda: Uniform(9, 3), "length"),
        (lambda: Uniform(0, 3), "length"),
        (lambda: Workload(requests=0), "requests"),
        (lambda: Workload(seed=1.5), "seed"),  # type: ignore[arg-type]
        (lambda: make_trace(Poisson(1.0), -1), "requests"),
        (lambda: REFERENCE_WORKLOAD.trace(0.0), "rate"),
        (lambda: make_trace(Poisson(1.0), 1, token_ids=[]), "token_ids"),
    ],
)
def test_a_bad_value_is_named(make, field):
    with pytest.raises(InvalidRequestError) as caught:
        make()
    assert caught.value.field == field
    assert caught.value.limit
