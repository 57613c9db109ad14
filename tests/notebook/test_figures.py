from __future__ import annotations

import pytest

from servelib.clock import VirtualClock
from servelib.engine.naive import NaiveEngine
from servelib.harness.sweep import sweep
from servelib.harness.trace import Workload
from servelib.model.config import REFERENCE
from servelib.notebook import figures
from servelib.sim.cost import StepCost
from servelib.sim.model import CostedModel
from servelib.spans import Span, Stage


def curve(rates, runs=2):
    def make(clock):
        assert isinstance(clock, VirtualClock)
        return NaiveEngine(CostedModel(REFERENCE, StepCost(0.01), clock), clock=clock)

    return sweep(make, Workload(requests=5), rates, runs=runs, clock="virtual")


def test_each_frame_moves_the_markers_to_its_own_rate_and_names_the_values():
    points = curve([0.5, 1, 2, 4])
    fig = figures.load_curve(points, points[1:3], alt="what it shows", start=2.2)
    assert fig.layout.meta == {"alt": "what it shows", "control": {"label": "arrival rate", "initial": 2}}
    assert len(fig.frames) == 4
    for point, frame in zip(points, fig.frames, strict=True):
        assert [trace.x[0] for trace in frame.data] == [point.rate] * 3
        assert frame.data[1].y[0] == point.summary.ttft_p50.value
        assert f"{point.rate:.3g} req/s" in frame.name
    moved = [fig.data[i] for i in fig.frames[0].traces]
    assert {trace.name for trace in moved} == {"chosen rate"}
    assert moved[0].x[0] == 2


def test_measured_points_carry_their_intervals():
    points = curve([1, 2])
    fig = figures.load_curve(points, points, alt="a")
    measured = [trace for trace in fig.data if trace.name == "measured"]
    estimate = points[0].summary.output_tokens_per_second
    assert measured[0].error_y.array[0] == pytest.approx(estimate.high - estimate.value)
    assert measured[0].error_y.arrayminus[0] == pytest.approx(estimate.value - estimate.low)


def test_the_timeline_has_a_row_a_stage_in_milliseconds_from_the_first_start():
    spans = [
        Span("a", Stage.RECEIVE, 5.0, 5.001),
        Span("a", Stage.DECODE, 5.5, 5.75),
        Span("a", Stage.DECODE, 6, 6.25),
    ]
    fig = figures.timeline(spans, alt="a")
    assert [trace.y[0] for trace in fig.data] == ["receive", "decode"]
    assert list(fig.data[1].base) == pytest.approx([500, 1000])
    assert list(fig.data[1].x) == pytest.approx([250, 250])
    assert [a.text for a in fig.layout.annotations] == ["1.00 ms", "500.00 ms"]
