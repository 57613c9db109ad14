from __future__ import annotations

import pytest
from queues import SingleServer
from worlds import record, run_of

from servelib.errors import InvalidRequestError
from servelib.harness.compare import COMPARED, Verdict, compare, paired, run_pairs
from servelib.harness.lengths import Fixed
from servelib.harness.metrics import RunMetrics
from servelib.harness.system import InProcess
from servelib.harness.trace import Workload


def test_b_better_a_better_or_nothing_and_by_how_much():
    a = [1.0, 2.0, 3.0, 4.0]
    slower = paired("ttft_p50", a, [x * 1.1 for x in a])
    assert slower.verdict is Verdict.A
    assert slower.ratio.value == pytest.approx(1.1)
    assert slower.ratio.interval == pytest.approx((1.1, 1.1))
    assert slower.difference.value == pytest.approx(0.25)
    assert paired("ttft_p50", a, [x * 0.9 for x in a]).verdict is Verdict.B
    assert paired("goodput_fraction", a, [x * 1.1 for x in a]).verdict is Verdict.B
    assert paired("goodput_fraction", a, [x * 0.9 for x in a]).verdict is Verdict.A
    assert paired("ttft_p50", a, [1.1, 1.9, 3.1, 3.9]).verdict is Verdict.NOTHING
    assert paired("ttft_p50", a, a).verdict is Verdict.NOTHING


def test_pairs_find_what_independent_runs_would_miss():
    """Traffic moves both by far more than 5 %; within a pair it cancels."""
    a = [1.0, 9.0, 3.0, 20.0, 6.0]
    found = paired("e2e_p50", a, [1.05 * x + 0.001 * (-1) ** i for i, x in enumerate(a)])
    assert found.verdict is Verdict.A
    assert found.ratio.low < 1.05 < found.ratio.high


def test_undefined_one_pair_and_zero_are_said_and_are_no_difference():
    nothing = paired("tpot_p50", [None, 1.0], [1.0, None])
    assert (nothing.pairs, nothing.a, nothing.verdict) == (0, None, Verdict.NOTHING)
    assert nothing.difference.note == "undefined in every pair"
    one = paired("tpot_p50", [None, 1.0], [1.0, 2.0])
    assert (one.pairs, one.difference.value, one.difference.interval) == (1, 1.0, None)
    assert one.verdict is Verdict.NOTHING
    zero = paired("goodput_fraction", [0.0, 0.0], [0.5, 0.5])
    assert (zero.verdict, zero.ratio.value) == (Verdict.B, None)
    rounding = paired("goodput_per_second", [0.1 + 0.2] * 3, [0.3] * 3)
    assert rounding.verdict is Verdict.NOTHING


def test_runs_must_be_of_one_trace_and_whole():
    a, b = run_of(record([(1.0, 1)])), run_of(record([(2.0, 1)]))
    assert {d.metric for d in compare([a], [b])} == set(COMPARED)
    assert set(COMPARED) <= set(RunMetrics.__slots__)
    with pytest.raises(InvalidRequestError, match="as many of A as of B"):
        compare([a], [])
    b.trace_hash = "other"
    with pytest.raises(InvalidRequestError, match="trace of pair 0: got 'other', must be -, as in A"):
        compare([a], [b])
    b.trace_hash, b.interrupted = "-", True
    with pytest.raises(InvalidRequestError, match="interrupted"):
        compare([a], [b])


def test_pairs_run_in_alternating_order_on_common_traces():
    order = []

    def system(name, seconds):
        def make(clock):
            order.append(name)
            return SingleServer(clock, lambda _: seconds)

        return InProcess(make, "virtual")

    a, b = run_pairs(system("A", 0.10), system("B", 0.11), Workload(Fixed(1), Fixed(1), 20), 2.0, pairs=4)
    assert "".join(order) == "ABBAABBA"
    assert [r.trace_hash for r in a] == [r.trace_hash for r in b]
    found = {d.metric: d for d in compare(a, b)}
    assert found["e2e_p50"].verdict is Verdict.A
    assert found["tpot_p50"].pairs == 0
