from __future__ import annotations

from dataclasses import dataclass
from statistics import fmean

import pytest
from worlds import At, timed_engine

from servelib.clock import Clock, VirtualClock
from servelib.engine.naive import NaiveEngine
from servelib.engine.protocol import Engine
from servelib.errors import InvalidRequestError
from servelib.harness import system as system_module
from servelib.harness.metrics import SLO, run_metrics
from servelib.harness.records import Outcome
from servelib.harness.summary import ESTIMATES, PERCENTILES
from servelib.harness.sweep import SweepError, measure, sweep
from servelib.harness.system import InProcess
from servelib.harness.trace import REFERENCE_WORKLOAD, Uniform, Workload
from servelib.model.config import REFERENCE
from servelib.model.scripted import ScriptedModel
from servelib.sim.cost import StepCost
from servelib.sim.model import CostedModel

TEN_MS = StepCost(overhead=0.010, provenance="10 ms a step")


def ten_ms(clock: Clock) -> Engine:
    """A server with a capacity of exactly 100 tokens/s."""
    assert isinstance(clock, VirtualClock)
    return NaiveEngine(CostedModel(REFERENCE, TEN_MS, clock), clock=clock)


def test_a_point_by_hand():
    """Two requests of 10 tokens at 10 ms each, 50 ms apart: the second waits for the first."""
    workload = Workload(Uniform(4, 4), Uniform(10, 10), 2, arrivals=lambda _: At((0.0, 0.05)))
    s = measure(ten_ms, workload, 4.0, runs=3, slo=SLO(ttft=0.05, gap=0.02), clock="virtual").summary
    assert s.ttft_p50.value == pytest.approx((0.010 + 0.060) / 2)
    assert (s.gap_p50.value, s.gap_p99.value) == pytest.approx((0.010, 0.010))
    assert s.output_tokens_per_second.value == pytest.approx(100.0)
    assert s.goodput_fraction.value == 0.5
    assert s.goodput_per_second.value == pytest.approx(1 / 0.2)
    assert s.goodput_fraction.interval == (0.5, 0.5)
    assert (s.offered, s.completed, s.failed, s.ttft_p50.n, s.gap_p50.samples) == (6, 6, 0, 3, 54)


def test_the_value_is_the_mean_of_the_runs_and_the_runs_differ_in_traffic():
    point = measure(ten_ms, REFERENCE_WORKLOAD, 4.0, clock="virtual")
    assert [run.seed for run in point.runs] == [7, 8, 9]
    assert len({run.trace_hash for run in point.runs}) == 3
    each = [run_metrics(run).ttft_p50 for run in point.runs]
    assert point.summary.ttft_p50.value == pytest.approx(fmean(each))
    assert point.summary.ttft_p50.low < min(each) < max(each) < point.summary.ttft_p50.high


def test_past_capacity_output_goes_flat_ttft_grows_and_goodput_falls():
    points = sweep(ten_ms, REFERENCE_WORKLOAD, [0.5, 6.0, 12.0, 24.0], clock="virtual")
    tokens = [p.summary.output_tokens_per_second.value for p in points]
    waits = [p.summary.ttft_p50.value for p in points]
    met = [p.summary.goodput_fraction.value for p in points]
    assert tokens[0] < 25
    assert all(90 < t <= 100.0001 for t in tokens[1:])
    assert waits == sorted(waits)
    assert met == sorted(met, reverse=True)
    assert met[0] > 0.95
    assert met[-1] < 0.35


def test_repeats_go_up_the_rates_and_come_down():
    seen: list[tuple[float, int]] = []

    workload = Workload(requests=1)
    rates = [1.0, 2.0, 4.0]
    traces = {workload.trace(rate, run).hash: (rate, run) for rate in rates for run in range(3)}
    original = system_module.drive

    def spy(engine, trace, clock, **kwargs):
        seen.append(traces[trace.hash])
        return original(engine, trace, clock, **kwargs)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(system_module, "drive", spy)
        points = sweep(ten_ms, workload, rates, clock="virtual")
    assert seen == [(1, 0), (2, 0), (4, 0), (4, 1), (2, 1), (1, 1), (1, 2), (2, 2), (4, 2)]
    assert [p.rate for p in points] == rates
    assert all([r.seed for r in p.runs] == [7, 8, 9] for p in points)


def test_one_run_has_order_statistic_intervals_for_percentiles_and_none_for_the_rest():
    s = measure(ten_ms, REFERENCE_WORKLOAD, 4.0, runs=1, clock="virtual").summary
    assert s.ttft_p50.interval is not None
    assert s.ttft_p50.low <= s.ttft_p50.value <= s.ttft_p50.high
    assert s.gap_p99.interval is not None  # 700 gaps are enough
    assert s.ttft_p99.interval is None
    assert s.output_tokens_per_second.interval is None


def test_a_percentile_from_too_few_samples_says_so():
    s = measure(ten_ms, REFERENCE_WORKLOAD, 4.0, clock="virtual").summary
    assert s.ttft_p99.note == "from 24 samples a run; p99 needs 368"
    assert s.ttft_p50.note is None
    assert s.gap_p99.note is None


def test_undefined_in_some_runs_is_left_out_and_said():
    calls = iter(range(100))

    def breaks_in_the_second(clock):
        call = next(calls)

        def seconds(state):
            if call == 1:
                raise ValueError("down")
            return 0.01

        return timed_engine(clock, seconds)

    s = measure(breaks_in_the_second, Workload(requests=8), 4.0, clock="virtual").summary
    assert s.failures == {"stream_error": 8}
    assert (s.offered, s.completed, s.failed) == (24, 16, 8)
    assert s.ttft_p50.n == 2
    assert s.ttft_p50.note == "undefined in 1 of 3 runs"
    assert s.goodput_fraction.n == 3


def test_all_failed_is_null_with_a_count():
    def down(clock):
        def seconds(state):
            raise ValueError("down")

        return timed_engine(clock, seconds)

    s = measure(down, Workload(requests=3), 4.0, clock="virtual").summary
    for name in PERCENTILES:
        if not name.startswith("send_lag"):
            estimate = s.estimates()[name]
            assert (estimate.value, estimate.interval, estimate.n, estimate.samples) == (None, None, 0, 0)
            assert estimate.note == "undefined in every run"
    assert s.goodput_fraction.value == 0.0
    assert s.output_tokens_per_second.value == 0.0
    assert tuple(s.estimates()) == ESTIMATES


def test_stopping_keeps_what_was_measured():
    progress: list[tuple[int, int]] = []
    points = sweep(
        ten_ms,
        Workload(requests=4),
        [1.0, 2.0],
        clock="virtual",
        on_progress=lambda done, total: progress.append((done, total)),
        should_stop=lambda: len(progress) >= 10,
    )
    assert [len(p.runs) for p in points] == [1, 2]  # up: 1, 2; down: 2, stopped in its middle
    assert points[1].summary.interrupted
    assert [p.conditions.runs for p in points] == [1, 2]
    assert not points[0].summary.interrupted
    assert points[1].runs[1].requests[-1].outcome is Outcome.ABORTED
    assert progress[-1] == (10, 24)  # the two that were never sent have not ended


def test_a_broken_run_raises_with_everything_measured():
    @dataclass
    class Ghostly:
        inner: Engine
        broken: bool

        name = "ghostly"

        def __getattr__(self, name):
            return getattr(self.inner, name)

        def step(self):
            if self.broken:
                raise RuntimeError("the engine is on fire")
            return self.inner.step()

    made = iter(range(100))
    with pytest.raises(SweepError, match="on fire") as caught:
        measure(
            lambda clock: Ghostly(ten_ms(clock), next(made) == 1), Workload(requests=2), 4.0, clock="virtual"
        )
    assert [[r.outcome for r in run.requests] for run in caught.value.points[0].runs] == [
        [Outcome.OK, Outcome.OK],
        [Outcome.STREAM_ERROR, Outcome.ABORTED],
    ]


def test_warm_up_runs_first_on_the_wall_clock_with_other_prompts_and_is_not_counted():
    prompts: list[tuple[int, ...]] = []

    def make(clock: Clock) -> Engine:
        def script(state):
            if not state.output_ids:
                prompts.append(state.request.prompt_ids)
            return 97

        return NaiveEngine(ScriptedModel(script), clock=clock)

    workload = Workload(requests=2, arrivals=lambda _: At((0.0, 0.0)))
    point = measure(make, workload, 4.0, runs=2, warmup=2)
    ours = [r.prompt_ids for run in range(2) for r in workload.trace(4.0, run).requests]
    assert prompts[2:] == ours
    assert not set(prompts[:2]) & set(ours)
    assert point.summary.offered == 4


def test_what_breaks_in_the_warm_up_breaks_the_measurement():
    class Down(NaiveEngine):
        def step(self):
            raise RuntimeError("no weights")

    with pytest.raises(SweepError, match=r"while warming up, .*no weights") as caught:
        measure(lambda clock: Down(ScriptedModel([97]), clock=clock), Workload(requests=1), 4.0)
    assert caught.value.points == []


@pytest.mark.parametrize(
    ("arguments", "field"),
    [({"runs": 0}, "runs"), ({"warmup": -1}, "warmup"), ({"rates": []}, "rates"), ({"rates": [0.0]}, "rate")],
)
def test_a_bad_argument_is_refused_before_anything_runs(arguments, field):
    def never(clock):
        raise AssertionError("an engine was made")

    with pytest.raises(InvalidRequestError) as caught:
        sweep(never, Workload(), **{"rates": [1.0], "clock": "virtual", **arguments})
    assert caught.value.field == field


def test_a_stop_between_two_runs_adds_no_run_that_was_never_begun():
    ended = []
    (found,) = sweep(
        lambda clock: timed_engine(clock, lambda _: 0.01),
        Workload(requests=2),
        [4.0],
        runs=3,
        clock="virtual",
        on_progress=lambda done, total: ended.append(done),
        should_stop=lambda: len(ended) >= 2,
    )
    assert [run.interrupted for run in found.runs] == [True]
    assert (found.summary.offered, found.summary.completed) == (2, 2)


def test_no_callers_is_refused_and_does_not_wait_for_ever():
    with pytest.raises(InvalidRequestError, match="callers"):
        InProcess(lambda clock: timed_engine(clock, lambda _: 0.01), "virtual", 0)
