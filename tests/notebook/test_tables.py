from __future__ import annotations

import re

import pytest

from servelib.clock import VirtualClock
from servelib.engine.naive import NaiveEngine
from servelib.harness.sweep import sweep
from servelib.harness.trace import Workload
from servelib.model.config import REFERENCE
from servelib.notebook import tables
from servelib.sim.cost import StepCost
from servelib.sim.model import CostedModel
from servelib.spans import Span, Stage


def points(runs: int):
    def make(clock):
        assert isinstance(clock, VirtualClock)
        return NaiveEngine(CostedModel(REFERENCE, StepCost(0.01), clock), clock=clock)

    return sweep(make, Workload(requests=5), [1, 8], runs=runs, clock="virtual")


def test_one_column_a_rate_every_metric_its_interval_and_the_conditions_below():
    measured = points(runs=3)
    table = tables.results(measured, caption="A caption")
    shown = table._repr_html_()
    assert list(table.headers) == ["arrival rate", "1 req/s", "8 req/s"]
    assert [row[0].split("\n")[0] for row in table.rows] == [
        "TTFT p50", "TTFT p95", "TTFT p99", "gap p50", "gap p99", "output rate", "goodput", "goodput",
        "completed", "failed",
    ]  # fmt: skip
    ttft = measured[0].summary.ttft_p50
    assert (ttft.value, ttft.low, ttft.high) == pytest.approx((0.01, 0.01, 0.01))
    assert table.rows[0][1] == "0.010\n0.010–0.010"
    assert table.rows[3][1].startswith("10.0\n")  # a gap of 10 ms, in ms
    assert table.rows[-2][1] == "15"
    assert "arrival rates 1, 8/s" in shown
    assert "SLO: first token within 1 s, every gap within 0.05 s." in shown
    assert "TTFT p99: from 5 samples a run; p99 needs 368." in shown
    assert "<caption>A caption</caption>" in shown


def test_an_undefined_value_says_so_and_one_run_has_no_interval():
    measured = points(runs=1)
    for record in measured[0].runs[0].requests:
        record.events.clear()
    from servelib.harness.summary import summarise

    measured[0].summary = summarise(measured[0].runs)
    table = tables.results(measured, caption="c")
    assert table.rows[0][1] == "undefined"
    assert table.rows[6][2].count("\n") == 0


def test_stage_shares_may_overlap_and_idle_time_counts_once():
    spans = [
        Span("a", Stage.RECEIVE, 0.0, 1.0),
        Span("a", Stage.PREFILL, 2.0, 6.0),
        Span("a", Stage.STREAM, 5.0, 9.0),  # overlaps the prefill
        Span("a", Stage.DECODE, 9.5, 10.0),
    ]
    rows = {row[0]: row[1:] for row in tables.stages(spans, caption="c").rows}
    assert rows["prefill"] == ["1", "4000.000", "40.0%"]
    assert rows["no stage"] == ["", "1500.000", "15.0%"]
    assert rows["queue"] == ["0", "0.000", "0.0%"]


def test_markup_in_a_cell_is_text():
    shown = tables.Table(("<a>",), [["<script>"]], "<b>", "<i>")._repr_html_()
    assert not re.search(r"<(a|script|b|i)>", shown)
    assert "&lt;script&gt;" in shown
