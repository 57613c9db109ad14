from __future__ import annotations

import math
import random
from statistics import median

import pytest
from scipy import stats as scipy_stats

from servelib.errors import InvalidRequestError
from servelib.harness.arrivals import Poisson
from servelib.harness.lengths import Empirical, Fixed, LogNormal, Uniform, lengths_from_file
from servelib.harness.trace import SharedPrefix, Workload, make_trace


def test_a_log_normal_law_keeps_its_shape_and_nothing_piles_up_at_the_borders():
    law = LogNormal(128, 1.0, 1, 2048)
    drawn = law.draw(20_000, random.Random(0))
    assert median(drawn) == pytest.approx(128, rel=0.03)
    inside = scipy_stats.lognorm(1.0, scale=128)
    mass = inside.cdf(2048.5) - inside.cdf(0.5)

    def cdf(x):
        return (inside.cdf(x) - inside.cdf(0.5)) / mass

    rng = random.Random(1)
    smooth = [x + rng.random() - 0.5 for x in drawn]  # undo the rounding
    assert scipy_stats.kstest(smooth, cdf).pvalue > 0.01
    assert sum(x == 2048 for x in drawn) <= 2
    assert all(1 <= x <= 2048 for x in drawn)


def test_bounds_that_bite_cut_the_law_and_do_not_clip_it():
    drawn = LogNormal(100, 1.0, 50, 150).draw(10_000, random.Random(0))
    share = sum(x == 150 for x in drawn) / len(drawn)
    assert share < 0.02  # clipping would put 34 % there


def test_fixed_and_empirical():
    assert Fixed(7).draw(3, random.Random(0)) == [7, 7, 7]
    drawn = Empirical((5, 5, 9)).draw(3000, random.Random(0))
    assert sorted(set(drawn)) == [5, 9]
    assert drawn.count(5) / 3000 == pytest.approx(2 / 3, abs=0.04)
    assert (Fixed(7).high, Empirical((5, 9, 2)).high) == (7, 9)


def test_lengths_from_a_file(tmp_path):
    path = tmp_path / "lengths.txt"
    path.write_text("5\r\n\n12\n")
    law = lengths_from_file(path)
    assert (law.values, law.label) == ((5, 12), "drawn from lengths.txt (2 lengths)")
    path.write_text("5\n1.5\n")
    with pytest.raises(InvalidRequestError, match=r"lengths.txt:2: got '1.5', must be one length a line"):
        lengths_from_file(path)
    path.write_text("\n")
    with pytest.raises(InvalidRequestError, match="no lengths"):
        lengths_from_file(path)


@pytest.mark.parametrize(
    ("make", "field"),
    [
        (lambda: Fixed(0), "length"),
        (lambda: LogNormal(0, 1, 1, 9), "median"),
        (lambda: LogNormal(9, math.nan, 1, 9), "sigma"),
        (lambda: LogNormal(9, 1, 5, 4), "length"),
        (lambda: LogNormal(9, 0.1, 5000, 6000), "length bounds"),
        (lambda: Empirical(()), "lengths"),
        (lambda: Empirical((0,)), "length"),
        (lambda: SharedPrefix(0), "prefix tokens"),
        (lambda: SharedPrefix(1, 0), "prefix groups"),
    ],
)
def test_a_bad_value_is_named(make, field):
    with pytest.raises(InvalidRequestError) as caught:
        make()
    assert caught.value.field == field


def test_a_shared_prefix_goes_in_front_and_changes_nothing_behind_it():
    plain = make_trace(Poisson(1.0), 40)
    shared = make_trace(Poisson(1.0), 40, shared_prefix=SharedPrefix(64, groups=3))
    heads = {r.prompt_ids[:64] for r in shared.requests}
    assert len(heads) == 3
    assert [r.prompt_ids[64:] for r in shared.requests] == [r.prompt_ids for r in plain.requests]
    assert [r.scheduled for r in shared.requests] == [r.scheduled for r in plain.requests]
    assert shared.prompt == "64 shared in 3 groups + 32-96"
    one = Workload(Uniform(4, 4), shared_prefix=SharedPrefix(8)).trace(2.0)
    assert len({r.prompt_ids[:8] for r in one.requests}) == 1
