"""Waiting against load: the page's figure, and the panel driven by its traits."""

from __future__ import annotations

import pytest

from servelib.harness.stats import Estimate
from servelib.notebook.queue_figures import frame_name, interval_text, waiting_curve
from servelib.notebook.render import described
from servelib.notebook.waiting import WAIT_HIGH, waiting_knobs
from servelib.sim.queueing import WaitSimulation, mg1_wait

AT = (0.2, 0.5, 0.9)


@pytest.fixture(scope="module")
def simulated():
    runs = {"customers": 500, "warmup": 100, "runs": 3}
    return {
        spread: {load: simulation.mean_wait(load) for load in AT}
        for spread in (0.0, 1.0, 4.0)
        for simulation in [WaitSimulation(spread, **runs)]
    }


@pytest.fixture
def panel():
    return waiting_knobs(customers=300)


def test_a_frame_a_spread_moves_theory_and_simulation_together(simulated):
    fig = waiting_curve(simulated, alt="what it shows", start=1.0)
    alt, label, initial = described(fig.to_plotly_json())
    assert (alt, label, initial) == ("what it shows", "spread of service times", 1)
    assert len(fig.frames) == 3
    for (spread, waits), frame in zip(simulated.items(), fig.frames, strict=True):
        moved = [fig.data[i].name for i in frame.traces]
        assert moved == ["theory", "simulated, with 95 % interval"]
        line, points = frame.data
        assert dict(zip(line.x, line.y, strict=True))[0.9] == mg1_wait(0.9, 1.0, spread)
        assert (line.x[0], line.x[-1]) == (0.0, 0.95)
        assert dict(zip(points.x, points.y, strict=True)) == {load: waits[load].value for load in AT}
        assert points.error_y.array[2] == waits[0.9].high - waits[0.9].value
        assert points.error_y.arrayminus[2] == waits[0.9].value - waits[0.9].low
        assert f"cv² {spread:g}" in frame.name
    shown = fig.data[1]
    assert list(shown.y) == list(fig.frames[1].data[0].y)
    assert fig.layout.xaxis.title.text
    assert fig.layout.yaxis.title.text
    assert fig.layout.yaxis.range[1] == 30
    assert not any(frame.layout.yaxis.range for frame in fig.frames)


def test_a_spread_that_was_not_simulated_cannot_be_shown_first(simulated):
    with pytest.raises(ValueError, match=r"3\.0"):
        waiting_curve(simulated, alt="a", start=3.0)


def test_words():
    waits = {0.5: Estimate(0.9, 0.8, 1.0), 0.9: Estimate(9.1, 8.0, 10.2)}
    assert frame_name(1.0, waits) == (
        "cv² 1 (exponential): at utilisation 0.9 the mean wait is 9.0 services in theory, "
        "9.1 [8.0, 10.2] simulated"
    )
    assert interval_text(Estimate(None)) == "undefined"
    assert interval_text(Estimate(1.25), ".2f") == "1.25"


def test_the_knobs_show_theory_and_simulation_where_they_stand(panel):
    panel.rate.value, panel.service.value, panel.spread.value = 2.0, 0.25, 3.0
    line, points, knob = panel.figure.widget.data
    assert "2 requests/s × 0.25 s = utilisation 0.50" in panel.headline.value
    assert "Mean wait: 0.5 s in theory" in panel.headline.value
    assert (knob.x, knob.y, knob.marker.symbol) == ((2.0,), (0.5,), "circle")
    assert dict(zip(line.x, line.y, strict=True))[2.0] == 0.5
    simulation = WaitSimulation(3.0, customers=300).mean_wait(0.5)
    at = points.x.index(2.0)
    assert points.y[at] == 0.25 * simulation.value
    assert points.error_y.array[at] == pytest.approx(0.25 * (simulation.high - simulation.value))
    assert points.error_y.arrayminus[at] == pytest.approx(0.25 * (simulation.value - simulation.low))
    assert "cv² = 3" in panel.figure.widget.layout.meta["alt"]


def test_each_knob_moves_the_headline_and_the_figure_in_place(panel):
    widget = panel.figure.widget
    for knob, value in ((panel.rate, 3.0), (panel.service, 0.125), (panel.spread, 0.0)):
        before = panel.headline.value, [(trace.x, trace.y) for trace in widget.data]
        knob.value = value
        assert panel.headline.value != before[0]
        assert [(trace.x, trace.y) for trace in widget.data] != before[1]
        assert panel.figure.widget is widget
        assert panel.status.value == ""


def test_only_another_spread_is_simulated_again(panel):
    before = panel._simulation
    panel.rate.value, panel.service.value = 1.0, 0.5
    assert panel._simulation is before
    panel.spread.value = 2.0
    assert panel._simulation is not before


def test_past_capacity_there_is_no_mean_and_beyond_the_top_it_is_marked_at_the_edge(panel):
    panel.rate.value = 8.0  # times 0.25 s: utilisation 2
    assert "there is no mean wait" in panel.headline.value
    assert panel.figure.widget.data[2].y == (WAIT_HIGH,)
    assert panel.figure.widget.data[2].marker.symbol == "triangle-up"
    panel.rate.value, panel.service.value, panel.spread.value = 0.95, 1.0, 4.0  # 47.5 s
    assert "Mean wait: 47.5 s in theory" in panel.headline.value
    assert panel.figure.widget.data[2].y == (WAIT_HIGH,)
    assert panel.figure.widget.data[2].marker.symbol == "triangle-up"
    panel.rate.value = 0.25
    assert panel.figure.widget.data[2].marker.symbol == "circle"


def test_the_first_control_is_the_arrival_rate(panel):
    assert panel.children[0].children == (panel.rate, panel.service, panel.spread)


def test_a_mistake_in_a_callback_is_shown(panel):
    panel._simulation = None
    panel._customers = 0
    panel.rate.value = 1.0
    assert "customers: got 0" in panel.status.value
    assert 'role="alert"' in panel.status.value
