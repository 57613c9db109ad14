"""The results as one HTML page and as an HdrHistogram log."""

from __future__ import annotations

import re
from html.parser import HTMLParser

import pytest
from hdrh.histogram import HdrHistogram
from hdrh.log import HistogramLogReader
from worlds import timed_engine

from servelib.harness.hdr import DIGITS, HIGHEST, KINDS, LOWEST, hdr_log
from servelib.harness.html import MOST_ROWS, distribution, html_report, in_flight, output_rate, rows
from servelib.harness.metrics import samples
from servelib.harness.records import Outcome, RequestRecord, RunRecord
from servelib.harness.sweep import Point, sweep
from servelib.harness.trace import Workload

HOSTILE = "</script><b>bold</b> & \u2028"


@pytest.fixture(scope="module")
def points() -> list[Point]:
    found = sweep(
        lambda clock: timed_engine(clock, lambda _: 0.01),
        Workload(requests=5),
        [4.0, 8.0],
        runs=2,
        clock="virtual",
    )
    found[0].runs[0].requests[1].outcome, found[0].runs[0].requests[1].error = Outcome.STREAM_ERROR, HOSTILE
    return found


class Page(HTMLParser):
    """Which tags there are, and everything that would be fetched."""

    def __init__(self) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.fetched: list[str] = []

    def handle_starttag(self, tag, attrs):
        self.tags.append(tag)
        self.fetched += [value for name, value in attrs if name in ("src", "href") and value]


def test_the_page_is_whole_in_itself_and_no_value_can_break_out(points):
    text = html_report(points, title="a <b> & c")
    page = Page()
    page.feed(text)
    assert page.fetched == []
    assert "b" not in page.tags
    assert page.tags.count("figure") == 2 + 3 * 2
    assert page.tags.count("script") == 1 + 8
    assert text.count(points[0].conditions.model) >= 1
    assert not re.search(r"@import|url\(", text.split("<script>")[0])


def test_the_distribution_is_that_of_all_runs(points):
    fig = distribution(points, "ttft")
    values = sorted(v for run in points[0].runs for v in samples(run).ttft)
    assert list(fig.data[0].x) == values
    assert list(fig.data[0].y) == [(i + 1) / len(values) for i in range(len(values))]
    assert [trace.name for trace in fig.data] == ["4 req/s", "8 req/s"]


def test_a_long_distribution_is_thinned_out_and_keeps_its_ends():
    requests = [
        RequestRecord(f"r{i}", 0.0, 1, 1, 0.0, [(float(i), 1)], float(i), Outcome.OK) for i in range(5000)
    ]
    run = RunRecord(0, "x", requests, 5000.0)

    class At:
        label = "4 req/s"
        rate, runs = 1.0, (run,)

    (line,) = distribution([At()], "ttft").data
    assert len(line.x) <= 2000
    assert (line.x[0], line.x[-1], line.y[-1]) == (0.0, 4999.0, 1.0)
    assert len(rows(run).data[0].y) == MOST_ROWS


def run_by_hand() -> RunRecord:
    """One request answered from 1 to 3 s, one that failed before its first token at 2 s."""
    good = RequestRecord("a", 0.0, 1, 4, 0.0, [(1.0, 1), (3.0, 3)], 3.0, Outcome.OK)
    bad = RequestRecord("b", 0.5, 1, 4, 0.5, [], 2.0, Outcome.TIMED_OUT, "not done")
    return RunRecord(0, "x", [good, bad], 4.0)


def test_waiting_and_running_over_time():
    waiting, running = in_flight(run_by_hand()).data
    assert list(zip(waiting.x, waiting.y, strict=True)) == [(0, 0), (0, 1), (0.5, 2), (1, 1), (2, 0)]
    assert list(zip(running.x, running.y, strict=True)) == [(0, 0), (1, 1), (3, 0)]


def test_output_rate_counts_tokens_where_they_came():
    (line,) = output_rate(run_by_hand(), bins=4).data
    assert list(line.y) == [0, 1, 0, 3]


def test_rows_show_the_wait_the_answer_and_the_failure():
    wait, answer, failed = rows(run_by_hand()).data
    assert (list(wait.base), list(wait.x)) == ([0, 0.5], [1, 1.5])
    assert (list(answer.base), list(answer.x)) == ([1, 0], [2, 0])
    assert (list(failed.x), list(failed.y), list(failed.text)) == ([2], [1], ["timed_out: not done"])


def test_a_run_without_events_has_figures_too():
    empty = RunRecord(0, "x", [RequestRecord("a", 0.0, 1, 1, outcome=Outcome.ABORTED)], 0.0)
    for figure in (in_flight, output_rate, rows):
        assert figure(empty).data


def test_hdr_log_is_read_back_by_the_package(points, tmp_path):
    path = tmp_path / "a.hlog"
    path.write_text(hdr_log(points))
    reader = HistogramLogReader(str(path), HdrHistogram(LOWEST, HIGHEST, DIGITS))
    found = {}
    while (histogram := reader.get_next_interval_histogram()) is not None:
        found[histogram.get_tag()] = histogram
    assert sorted(found) == sorted(
        f"{rate}_{run}_{kind}" for rate in (4, 8) for run in (1, 2) for kind in KINDS
    )
    for i, run in enumerate(points[1].runs, start=1):
        for kind in KINDS:
            values = getattr(samples(run), kind)
            histogram = found[f"8_{i}_{kind}"]
            assert histogram.total_count == len(values)
            largest = histogram.get_value_at_percentile(100)
            assert largest == pytest.approx(max(1.0, 1e6 * max(values)), rel=2e-3)


def test_the_facts_of_the_runs_are_on_the_page_once(points):
    text = html_report(points)
    assert text.count("Run: open loop, latency from the schedule") == 1
