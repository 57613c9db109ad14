from __future__ import annotations

import json
import math
from dataclasses import replace

import pytest
from worlds import timed_engine

from servelib.harness.arrivals import AtOnce, Constant, Gamma, Poisson
from servelib.harness.compat import compat
from servelib.harness.conditions import closed_loop
from servelib.harness.records import Outcome, RequestRecord, RunRecord
from servelib.harness.report import check_writable, document, point_document, text_table, to_json, write_text
from servelib.harness.selfcheck import SelfCheck
from servelib.harness.sweep import Point, measure, sweep, sweep_system
from servelib.harness.system import InProcess
from servelib.harness.trace import Workload

SUMMARY = [
    "ttft_p50",
    "ttft_p95",
    "ttft_p99",
    "gap_p50",
    "gap_p99",
    "tpot_p50",
    "e2e_p50",
    "e2e_p99",
    "output_tokens_per_second",
    "goodput_per_second",
    "goodput_fraction",
    "send_lag_p50",
    "send_lag_p99",
]


def point(*, runs: int = 3, broken: bool = False) -> Point:
    def seconds(state):
        if broken:
            raise ValueError("down")
        return 0.01

    return measure(
        lambda clock: timed_engine(clock, seconds), Workload(requests=5), 4.0, runs=runs, clock="virtual"
    )


def test_json_holds_every_name_and_every_record():
    found = json.loads(to_json(point_document(point())))
    assert list(found) == ["conditions", "summary", "runs", "compat"]
    summary = found["summary"]
    assert (summary["offered"], summary["completed"], summary["failed"]) == (15, 15, 0)
    for name in SUMMARY:
        low, high = summary[f"{name}_interval"]
        assert low <= summary[name] <= high
    records = found["runs"][0]["records"]
    assert [len(run["records"]) for run in found["runs"]] == [5, 5, 5]
    assert set(records[0]) >= {
        "scheduled",
        "sent",
        "events",
        "end",
        "outcome",
        "prompt_tokens",
        "output_tokens",
    }
    for r in records:
        assert sum(tokens for _, tokens in r["events"]) == r["output_tokens"] == r["requested_tokens"]
        assert r["end"] == r["events"][-1][0]
        assert r["outcome"] == "ok"


def test_the_summary_can_be_worked_out_from_the_records():
    found = json.loads(to_json(point_document(point(runs=1))))
    records = found["runs"][0]["records"]
    waits = sorted(r["events"][0][0] - r["scheduled"] for r in records)
    assert found["summary"]["ttft_p50"] == waits[2]
    window = max(r["end"] for r in records)
    tokens = sum(r["output_tokens"] for r in records)
    assert found["summary"]["output_tokens_per_second"] == tokens / window


def test_compat_speaks_the_other_tool_s_language():
    found = json.loads(to_json(point_document(point())))
    c = found["compat"]
    for kind in ("ttft", "tpot", "itl", "e2el"):
        for statistic in ("mean", "median", "std", "p99"):
            assert isinstance(c[f"{statistic}_{kind}_ms"], float)
    assert len(c["ttfts"]) == len(c["itls"]) == len(c["input_lens"]) == len(c["output_lens"]) == 15
    assert c["mean_ttft_ms"] == pytest.approx(1000 * math.fsum(c["ttfts"]) / 15)
    assert c["median_itl_ms"] == pytest.approx(10.0)
    assert all(len(itl) == n - 1 for itl, n in zip(c["itls"], c["output_lens"], strict=True))
    assert c["duration"] == pytest.approx(sum(run["duration"] for run in found["runs"]))
    assert c["output_throughput"] == pytest.approx(sum(c["output_lens"]) / c["duration"])
    assert c["total_token_throughput"] > c["output_throughput"]
    assert (c["completed"], c["failed"], c["request_rate"]) == (15, 0, 4.0)


def test_undefined_is_null_never_nan():
    text = to_json(point_document(point(broken=True)))
    found = json.loads(text, parse_constant=lambda name: pytest.fail(f"{name} in JSON"))
    assert found["summary"]["ttft_p50"] is None
    assert found["summary"]["ttft_p50_interval"] is None
    assert found["summary"]["samples"]["ttft_p50"] == 0
    assert found["summary"]["failures"] == {"stream_error": 15}
    assert found["compat"]["mean_ttft_ms"] is None
    assert found["compat"]["ttfts"] == [None] * 15
    with pytest.raises(ValueError, match="JSON"):
        to_json({"value": math.nan})


def test_a_sweep_s_json_has_a_body_a_rate():
    points = sweep(
        lambda clock: timed_engine(clock, lambda _: 0.01), Workload(requests=2), [1.0, 4.0], clock="virtual"
    )
    found = document(points)
    assert found["conditions"]["rates"] == [1.0, 4.0]
    assert [p["rate"] for p in found["points"]] == [1.0, 4.0]
    assert set(found["points"][0]) == {"rate", "summary", "runs", "compat"}


def test_the_table_shows_values_intervals_notes_and_conditions():
    lines = text_table([point()]).splitlines()
    assert lines[0].split()[0] == "arrivals"
    assert "gap p50 ms" in lines[0]
    assert lines[2].split()[-2:] == ["15", "0"]
    assert "[" in lines[3]
    assert "* TTFT p99: from 5 samples a run; p99 needs 368." in lines
    assert lines[-2].startswith("Conditions: ")
    assert lines[-1].startswith("Run: open loop, latency from the schedule, percentiles by linear ")
    assert "15 ok, 0 failed, achieved " in lines[-1]
    assert lines[-1].endswith(
        "output length as asked in 15 of 15, steady state: too short to say, virtual clock"
    )


def test_the_table_shows_failures_and_never_a_false_zero():
    text = text_table([point(broken=True)])
    assert "Failed: 15 stream_error at 4/s." in text
    assert text.splitlines()[2].split()[:7] == ["4", "req/s", *"-----"]
    assert "*" not in text


def test_a_file_is_written_whole_or_not_at_all(tmp_path, monkeypatch):
    path = tmp_path / "a.json"
    path.write_text("old")
    with monkeypatch.context() as patch:
        patch.setattr("os.replace", lambda *_: (_ for _ in ()).throw(OSError("disk full")))
        with pytest.raises(OSError, match="disk full"):
            write_text(path, "new")
    assert path.read_text() == "old"
    write_text(path, "new")
    assert path.read_text() == "new"
    assert list(tmp_path.iterdir()) == [path]


def test_a_link_stays_a_link_and_a_bad_path_is_found_early(tmp_path):
    target, link = tmp_path / "real.json", tmp_path / "link.json"
    target.write_text("old")
    link.symlink_to(target)
    write_text(link, "new")
    assert link.is_symlink()
    assert target.read_text() == "new"
    check_writable(tmp_path / "fresh.json")
    assert not (tmp_path / "fresh.json").exists()
    for bad in (tmp_path, tmp_path / "none" / "a.json"):
        with pytest.raises(OSError, match="folder"):
            check_writable(bad)


def test_compat_has_every_key_of_the_other_tool():
    """The keys that ``vllm bench serve --save-result --save-detailed`` writes, version 0.33."""
    found = point_document(point())["compat"]
    scalars = [
        "date",
        "endpoint_type",
        "backend",
        "label",
        "model_id",
        "tokenizer_id",
        "num_prompts",
        "request_rate",
        "burstiness",
        "max_concurrency",
        "duration",
        "completed",
        "failed",
        "total_input_tokens",
        "total_output_tokens",
        "request_throughput",
        "request_goodput",
        "output_throughput",
        "total_token_throughput",
        "max_output_tokens_per_s",
        "max_concurrent_requests",
        "rtfx",
    ]
    a_request = "input_lens output_lens ttfts itls latencies start_times queue_times generated_texts errors"
    assert set(scalars) | set(a_request.split()) <= set(found)
    for name in a_request.split():
        assert len(found[name]) == 15, name
    assert found["start_times"] == [r.sent for run in point().runs for r in run.requests]


def test_compat_counts_peaks_as_the_other_tool_does():
    good = [
        RequestRecord("a", 0.0, 1, 3, 0.5, [(1.0, 1), (1.4, 1), (1.6, 1)], 1.6, Outcome.OK),
        RequestRecord("b", 0.0, 1, 2, 1.6, [(1.7, 1), (2.6, 1)], 2.6, Outcome.OK),
        RequestRecord("c", 0.0, 1, 9, 0.5, [(1.0, 9)], 9.0, Outcome.TIMED_OUT),
    ]
    made = point()
    found = compat(replace(made, runs=[RunRecord(0, "x", good, 3.0)]))
    assert found["max_output_tokens_per_s"] == 2  # seconds count from the first send: 0.5-1.5, 1.5-2.5
    assert found["max_concurrent_requests"] == 1  # b begins as a ends; c failed
    assert found["request_rate"] == 4.0
    assert compat(replace(made, rate=math.inf))["request_rate"] == "inf"


@pytest.mark.parametrize(
    ("arrivals", "burstiness", "callers"),
    [
        (Poisson(4.0).label, 1.0, None),
        (Gamma(4.0, 0.25).label, 0.25, None),
        (Constant(4.0).label, None, None),
        (AtOnce().label, None, None),
        (closed_loop(3), None, 3),
    ],
)
def test_compat_says_how_the_load_was_made(arrivals, burstiness, callers):
    made = point()
    found = compat(replace(made, conditions=replace(made.conditions, arrivals=arrivals)))
    assert (found["burstiness"], found["max_concurrency"]) == (burstiness, callers)


def test_a_run_that_the_harness_spoilt_is_marked():
    made = point()
    made.runs[1].self_check = SelfCheck("http", 0.9, 0.0, 0.0, reasons=("harness busy 90% of the time",))
    made.runs[0].requests[2].tokens_note = "6 tokens in 2 chunks"
    text = text_table([made])
    assert "Harness, at worst: busy 90.0% of the time, sends late by 0 ms at p99 (all its own doing)." in text
    assert "Harness" not in text_table([point()])  # in virtual time it costs nothing
    assert "INVALID: run 2 at 4/s, the harness was too slow: harness busy 90% of the time." in text
    assert "Token counts of 1 of 15 requests to be read with care: 6 tokens in 2 chunks." in text
    runs = json.loads(to_json(point_document(made)))["runs"]
    assert [run["self_check"] and run["self_check"]["reasons"] for run in runs] == [
        None, ["harness busy 90% of the time"], None,
    ]  # fmt: skip
    assert runs[0]["records"][2]["tokens_note"] == "6 tokens in 2 chunks"


@pytest.mark.parametrize(
    ("options", "label", "failed"),
    [
        ({"rate": 4.0}, "4 req/s", "at 4/s"),
        ({"rate": math.inf}, "all at once", "all at once"),
        ({"rate": math.inf, "callers": 1}, "1 caller", "with 1 caller"),
        ({"rate": math.inf, "callers": 2}, "2 callers", "with 2 callers"),
    ],
)
def test_a_note_names_the_load_and_not_an_infinite_rate(options, label, failed):
    def seconds(state):
        raise ValueError("down")

    system = InProcess(lambda clock: timed_engine(clock, seconds), "virtual", options.get("callers"))
    law = AtOnce if math.isinf(options["rate"]) else Poisson
    workload = Workload(requests=2, arrivals=lambda rate: law(rate))
    made = sweep_system(system, workload, [options["rate"]], runs=1)
    lines = text_table(made).splitlines()
    assert lines[2].strip().startswith(label)
    assert f"Failed: 2 stream_error {failed}." in lines
    assert "inf/s" not in "".join(lines)
