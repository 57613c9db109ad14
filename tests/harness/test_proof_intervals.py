"""Proof 6: intervals hold as often as they say, equal engines look equal, and slower ones are found."""

from __future__ import annotations

import math
import random
from statistics import NormalDist, fmean

import pytest
from queues import mm1_run
from scipy import stats as scipy_stats

from servelib.errors import InvalidRequestError
from servelib.harness.bootstrap import bootstrap_interval
from servelib.harness.compare import Verdict, paired
from servelib.harness.metrics import SLO, meets
from servelib.harness.power import pairs_needed, power
from servelib.harness.stats import percentile_interval, t_interval
from servelib.harness.summary import summarise

TIMES = 2000


def coverage(truth: float, interval_of) -> float:
    """How often the interval of a fresh sample holds the truth."""
    held = 0
    for seed in range(TIMES):
        low, high = interval_of(random.Random(seed))
        held += low <= truth <= high
    return held / TIMES


@pytest.mark.parametrize(("runs", "law"), [(3, "normal"), (5, "normal"), (30, "exponential")])
def test_students_interval_over_runs(runs, law):
    def interval(rng):
        draw = (lambda: rng.gauss(1.0, 0.2)) if law == "normal" else (lambda: rng.gammavariate(10, 0.1))
        return t_interval([draw() for _ in range(runs)])

    assert 0.93 <= coverage(1.0, interval) <= 0.97


@pytest.mark.parametrize(("q", "n"), [(0.50, 300), (0.95, 400), (0.99, 1500)])
def test_the_order_statistic_interval_of_a_percentile(q, n):
    truth = -math.log(1 - q)
    found = coverage(truth, lambda rng: percentile_interval(sorted(rng.expovariate(1) for _ in range(n)), q))
    assert 0.93 <= found <= 0.97


def test_the_bootstrap_interval_of_a_mean(monkeypatch):
    monkeypatch.setitem(globals(), "TIMES", 600)
    found = coverage(
        1.0,
        lambda rng: bootstrap_interval([rng.gauss(1, 0.5) for _ in range(60)], fmean, resamples=400),
    )
    assert 0.93 <= found <= 0.97


def test_blocks_keep_the_interval_honest_where_neighbours_depend(monkeypatch):
    """Latencies that follow each other (first-order, 0.8): single draws promise far too much."""
    monkeypatch.setitem(globals(), "TIMES", 150)

    def interval(block):
        def of(rng):
            value, values = 0.0, []
            for _ in range(400):
                value = 0.8 * value + rng.gauss(0, 1)
                values.append(value)
            return bootstrap_interval(values, fmean, block=block, resamples=200)

        return of

    alone, blocks = coverage(0.0, interval(1)), coverage(0.0, interval(40))
    assert alone < 0.65
    assert blocks > 0.85


def test_goodput_of_one_run_has_an_interval_that_holds_although_requests_wait_behind_each_other():
    """M/M/1 at utilisation 0.7, 400 requests: P(time <= T) is known, and neighbours are late together."""
    limit = math.log(5) / 0.3  # so that 80 % are in time
    held = alone = 0
    for seed in range(100):
        run = mm1_run(0.7, 400, seed)
        low, high = summarise([run], SLO(limit, 1.0)).goodput_fraction.interval
        met = [float(meets(r, SLO(limit, 1.0))) for r in run.requests]
        narrow = bootstrap_interval(met, fmean, resamples=200)
        held += low <= 0.8 <= high
        alone += narrow[0] <= 0.8 <= narrow[1]
    assert alone < 50
    assert held > 80


def test_goodput_that_every_request_met_is_not_called_certain():
    run = mm1_run(0.1, 24, 0)
    for runs in ([run], [run, run, run]):
        found = summarise(runs, SLO(1e6, 1e6)).goodput_fraction
        assert found.value == found.high == 1.0
        assert found.low == pytest.approx(0.025 ** (1 / (24 * len(runs))))
        none = summarise(runs, SLO(1e-9, 1e-9)).goodput_fraction
        assert (none.value, none.low) == (0.0, 0.0)
        assert none.high == pytest.approx(1 - found.low)


def test_the_bootstrap_repeats_itself_and_knows_its_limits():
    values = [1.0, 5.0, 2.0, 8.0]
    assert bootstrap_interval(values, fmean) == bootstrap_interval(values, fmean)
    assert bootstrap_interval(values, fmean, seed=1) != bootstrap_interval(values, fmean)
    assert bootstrap_interval([1.0], fmean) is None
    assert bootstrap_interval(values, fmean, block=3) is None
    with pytest.raises(InvalidRequestError, match="block"):
        bootstrap_interval(values, fmean, block=0)


def pair_of(rng: random.Random, pairs: int, slow_down: float) -> tuple[list[float], list[float]]:
    """TTFT p50s of two engines: traffic moves both by 40 %, noise each by 3 %."""
    traffic = [math.exp(rng.gauss(0, 0.4)) for _ in range(pairs)]
    a = [x * math.exp(rng.gauss(0, 0.03)) for x in traffic]
    return a, [x * (1 + slow_down) * math.exp(rng.gauss(0, 0.03)) for x in traffic]


def test_an_engine_against_itself_shows_a_difference_in_five_per_cent():
    found = [paired("ttft_p50", *pair_of(random.Random(seed), 8, 0.0)).verdict for seed in range(TIMES)]
    share = sum(verdict is not Verdict.NOTHING for verdict in found) / TIMES
    assert 0.03 <= share <= 0.07
    assert found.count(Verdict.A) == pytest.approx(found.count(Verdict.B), rel=0.4)  # and neither way more


def test_a_slow_down_of_five_per_cent_is_found_at_the_stated_power():
    pairs, noise = 8, 0.03
    stated = power(pairs, math.log(1.05) / (noise * math.sqrt(2)))
    found = 0
    for seed in range(TIMES):
        found += paired("ttft_p50", *pair_of(random.Random(seed), pairs, 0.05)).verdict is Verdict.A
    assert 0.75 < stated < 0.85
    assert found / TIMES == pytest.approx(stated, abs=3 * math.sqrt(stated * (1 - stated) / TIMES))


@pytest.mark.parametrize(
    ("pairs", "effect"), [(2, 1.0), (3, 2.5), (5, 1.0), (12, 0.0), (40, 0.4), (300, 0.2)]
)
def test_power_is_that_of_the_noncentral_t(pairs, effect):
    t = scipy_stats.t.ppf(0.975, pairs - 1)
    law = scipy_stats.nct(pairs - 1, effect * math.sqrt(pairs)) if effect else scipy_stats.t(pairs - 1)
    assert power(pairs, effect) == pytest.approx(law.sf(t) + law.cdf(-t), abs=1e-3)


def test_how_many_pairs_a_comparison_needs():
    needed = pairs_needed(1.0)
    assert power(needed - 1, 1.0) < 0.9 <= power(needed, 1.0)
    assert needed == 13
    assert pairs_needed(0.001) is None
    assert abs(pairs_needed(0.1) - (NormalDist().inv_cdf(0.975) + NormalDist().inv_cdf(0.9)) ** 2 / 0.01) < 4
