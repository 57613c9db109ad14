"""The knobs: what they compute, and a panel driven by its traits, without a browser."""

from __future__ import annotations

import threading

import pytest

from servelib.engine.naive import NaiveEngine
from servelib.harness.metrics import run_metrics
from servelib.harness.sweep import measure
from servelib.model.config import REFERENCE
from servelib.model.scripted import ScriptedModel
from servelib.notebook.background import BackgroundRun, stop_all
from servelib.notebook.curves import GRID, Curves, Settings, naive
from servelib.notebook.knob_text import describe, duration
from servelib.notebook.widgets import knobs
from servelib.sim.cost import StepCost
from servelib.sim.model import CostedModel

COST = StepCost(overhead=0.002, per_token=0.0001)
WAIT = 20.0  # bound of every wait: reached only when something is broken


def threads():
    return [thread for thread in threading.enumerate() if isinstance(thread, BackgroundRun)]


def fast(clock, use_cache):
    return NaiveEngine(ScriptedModel([65]), use_cache=use_cache, clock=clock)


class Gate:
    """An engine maker whose engines stand still until opened: a run that is surely under way."""

    def __init__(self):
        self.inside, self.opened = threading.Event(), threading.Event()
        self.made = 0

    def __call__(self, clock, use_cache):
        self.made += 1

        def token(state):
            self.inside.set()
            assert self.opened.wait(WAIT)
            return 65

        return NaiveEngine(ScriptedModel(token), use_cache=use_cache, clock=clock)


def make(make_engine=fast, **more):
    more = {"requests": 4, "runs": 2, "settings": Settings(rate=16.0, output=(2, 3))} | more
    return knobs(cost=COST, make_engine=make_engine, model_config=REFERENCE, **more)


def finish(panel):
    run = panel._run
    if run is not None:
        run.join(WAIT)
        assert not run.is_alive()
    assert not panel.running


@pytest.fixture(autouse=True)
def _no_thread_is_left():
    yield
    stop_all(WAIT)
    assert threads() == []


def test_the_curve_is_what_the_harness_measures_in_virtual_time():
    curves = Curves(COST, REFERENCE, requests=8)
    settings = Settings(rate=4.0)
    for rate, metrics in curves.curve(settings):
        point = measure(
            lambda clock: naive(CostedModel(REFERENCE, COST, clock), clock, False),
            curves.workload(settings),
            rate,
            runs=1,
            clock="virtual",
        )
        assert metrics == run_metrics(point.runs[0])


def test_past_capacity_output_is_flat_ttft_grows_and_goodput_falls():
    curve = dict(Curves(COST, REFERENCE).curve(Settings()))
    calm, busy, flooded = curve[0.25], curve[8.0], curve[16.0]
    assert flooded.output_tokens_per_second < 1.15 * busy.output_tokens_per_second
    assert calm.ttft_p50 < busy.ttft_p50 < flooded.ttft_p50
    assert calm.goodput_fraction == 1.0
    assert flooded.goodput_fraction < 0.7


def test_the_rate_and_the_slo_reuse_the_runs():
    made = []

    def counted(model, clock, use_cache):
        made.append(use_cache)
        return naive(model, clock, use_cache)

    curves = Curves(COST, REFERENCE, requests=4, make_engine=counted)
    assert [rate for rate, _ in curves.curve(Settings(rate=4.0))] == list(GRID)
    assert len(made) == len(GRID)
    assert len(curves.curve(Settings(rate=3.0))) == len(GRID) + 1
    curves.curve(Settings(rate=8.0, slo_ttft=0.1, slo_gap=0.01))
    assert len(made) == len(GRID) + 1
    curves.curve(Settings(use_cache=True))
    assert made[-len(GRID) :] == [True] * len(GRID)


def test_a_tighter_slo_never_raises_goodput():
    curves = Curves(COST, REFERENCE, requests=12)
    fractions = [curves.at(Settings(slo_ttft=ttft)).goodput_fraction for ttft in (0.01, 0.1, 1.0, 8.0)]
    assert fractions == sorted(fractions)


def test_words():
    settings = Settings(rate=0.25)
    text = describe(settings, Curves(COST, REFERENCE).at(settings))
    assert "at 0.25 requests/s" in text
    assert "100 % of the requests meet the SLO" in text
    assert duration(0.2) == "1 s"
    assert duration(300) == "5 min"


def test_each_knob_moves_the_headline_and_the_figure():
    panel = make(requests=12, settings=Settings(rate=8.0))
    for knob, value in (
        (panel.rate, 16.0),
        (panel.prompt, (200, 300)),
        (panel.output, (64, 96)),
        (panel.use_cache, True),
        (panel.slo_ttft, 0.125),
        (panel.slo_gap, 0.00625),
    ):
        before = panel.headline.value, [tuple(trace.y or ()) for trace in panel.figure.widget.data]
        knob.value = value
        after = panel.headline.value, [tuple(trace.y or ()) for trace in panel.figure.widget.data]
        assert panel.settings != Settings(rate=8.0)
        if knob is not panel.slo_gap:  # goodput may have been at its floor already
            assert after[1] != before[1], knob.description
    assert "requests/s" in panel.figure.widget.layout.meta["alt"]


def test_the_first_control_is_the_arrival_rate_from_a_quarter_to_sixteen():
    panel = make()
    assert panel.children[0].children[0] is panel.rate
    assert (panel.rate.base**panel.rate.min, panel.rate.base**panel.rate.max) == (0.25, 16.0)


def test_a_real_run_puts_a_point_with_its_interval_on_the_curve():
    panel = make()
    panel.run_button.click()
    finish(panel)
    measured = panel.figure.widget.data[2]
    assert list(measured.x) == [16.0]
    assert measured.error_y.array[0] > 0
    assert "Measured on this machine at 16 requests/s, 2 runs" in panel.status.value
    assert not panel.run_button.disabled
    assert panel.stop_button.disabled
    panel.output.value = (5, 6)  # another workload: the point does not belong to its curve
    assert list(panel.figure.widget.data[2].x) == []
    panel.output.value = (2, 3)
    assert list(panel.figure.widget.data[2].x) == [16.0]


def test_two_clicks_start_one_run_and_stop_stops_it():
    gate = Gate()
    panel = make(gate)
    panel.run_button.click()
    assert gate.inside.wait(WAIT)
    assert panel.running
    assert panel.run_button.disabled
    assert not panel.stop_button.disabled
    panel.start()
    panel.run_button.click()
    assert len(threads()) == 1
    panel.rate.value = 8.0  # the sliders answer while it runs
    assert "at 8 requests/s" in panel.headline.value
    panel.stop_button.click()
    gate.opened.set()
    finish(panel)
    assert "Stopped before one run was whole" in panel.status.value
    assert panel.run_button.description.startswith("Run it for real (about ")
    assert list(panel.figure.widget.data[2].x) == []


def test_an_error_is_shown_and_the_panel_goes_on():
    def broken(clock, use_cache):
        raise MemoryError("no room for <the model>")

    panel = make(broken)
    panel.run_button.click()
    finish(panel)
    assert "MemoryError: no room for &lt;the model&gt;" in panel.status.value
    assert 'role="alert"' in panel.status.value
    assert isinstance(panel.error, MemoryError)
    panel._make_engine = fast
    panel.run_button.click()
    finish(panel)
    assert "Measured" in panel.status.value
    assert panel.error is None


def test_a_cell_run_again_or_a_closed_panel_leaves_no_run_behind():
    gate = Gate()
    old = make(gate)
    old.run_button.click()
    assert gate.inside.wait(WAIT)
    gate.opened.set()
    new = make()
    assert threads() == []
    gate = Gate()
    new._make_engine = gate
    new.run_button.click()
    assert gate.inside.wait(WAIT)
    gate.opened.set()
    new.close()
    assert threads() == []


def test_a_mistake_in_a_callback_is_shown():
    panel = make()

    def broken(settings):
        raise ValueError("out of order")

    panel._curves.curve = broken
    panel.rate.value = 1.0
    assert "ValueError: out of order" in panel.status.value
