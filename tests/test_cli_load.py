"""The command line's load, comparison and capacity search."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys

import pytest

from servelib.cli import main
from servelib.commands.options import lengths, shared_prefix
from servelib.commands.signals import stop_in_order
from servelib.harness.lengths import Empirical, LogNormal, Uniform
from servelib.harness.trace import SharedPrefix, Workload
from servelib.harness.trace_files import read_trace

VIRTUAL = ["bench", "--clock", "virtual", "--engine", "cached"]
AZURE = "TIMESTAMP,ContextTokens,GeneratedTokens\n2023-11-16 18:15:46.5,20,4\n2023-11-16 18:15:47.5,30,5\n"
MOONCAKE = '{"timestamp": 0, "input_length": 9, "output_length": 2, "hash_ids": [1]}\n'


def bench_json(tmp_path, *options: str, name: str = "a.json"):
    path = tmp_path / name
    assert main([*VIRTUAL, *options, "--json", str(path)]) == 0
    return json.loads(path.read_text())


@pytest.mark.parametrize(
    ("options", "arrivals", "rates"),
    [
        ([], "poisson", [4.0]),
        (["--arrivals", "constant", "--rate", "2"], "constant", [2.0]),
        (["--arrivals", "gamma:0.25"], "gamma, burstiness 0.25", [4.0]),
        (["--arrivals", "ramp:2-8"], "ramp 2-8/s", [5.0]),
        (["--arrivals", "piecewise:4x2,16x1"], "piecewise 4/s for 2 s, 16/s for 1 s", [8.0]),
        (["--rate", "inf"], "all at once", ["inf"]),
        (["--closed-loop", "4"], "closed loop, 4 callers", ["inf"]),
    ],
)
def test_every_law_reaches_the_run(options, arrivals, rates, tmp_path, capsys):
    found = bench_json(tmp_path, *options, "--requests", "6", "--runs", "2")
    assert found["conditions"]["arrivals"] == arrivals
    assert found["conditions"]["rates"] == rates
    assert found["summary"]["completed"] == 12
    run_line = capsys.readouterr().out.splitlines()[-1]
    assert run_line.startswith("Run: closed loop" if options[:1] == ["--closed-loop"] else "Run: open loop")
    prompts = Workload(requests=6).trace(1.0)
    assert [r["prompt_tokens"] for r in found["runs"][0]["records"]] == [
        len(r.prompt_ids) for r in prompts.requests
    ]


def test_a_closed_loop_never_has_more_in_flight_than_callers(tmp_path):
    (run,) = bench_json(tmp_path, "--closed-loop", "2", "--runs", "1")["runs"]
    moves = sorted([(r["sent"], 1) for r in run["records"]] + [(r["end"], -1) for r in run["records"]])
    flying = peak = 0
    for _, move in moves:
        flying += move
        peak = max(peak, flying)
    assert peak == 2


def test_a_file_of_times_takes_its_number_of_requests(tmp_path):
    times = tmp_path / "times.txt"
    times.write_text("0.5\n1\n2\n")
    found = bench_json(tmp_path, "--arrivals", str(times))
    assert [r["scheduled"] for r in found["runs"][0]["records"]] == [0.5, 1.0, 2.0]
    assert found["conditions"]["rates"] == [1.5]


def test_a_published_trace_is_replayed_whole_in_every_run(tmp_path):
    azure = tmp_path / "azure.csv"
    azure.write_text(AZURE)
    found = bench_json(tmp_path, "--arrivals", str(azure), "--runs", "2")
    assert [run["trace_hash"] for run in found["runs"]] == [found["runs"][0]["trace_hash"]] * 2
    assert found["conditions"]["seeds"] == [7, 7]
    records = found["runs"][0]["records"]
    assert [(r["scheduled"], r["prompt_tokens"], r["output_tokens"]) for r in records] == [
        (0, 20, 4),
        (1, 30, 5),
    ]


def test_a_saved_trace_runs_again_as_the_same_trace(tmp_path):
    saved = tmp_path / "trace.jsonl"
    first = bench_json(tmp_path, "--arrivals", "gamma:0.5", "--runs", "1", "--save-trace", str(saved))
    again = bench_json(tmp_path, "--arrivals", str(saved), "--runs", "1")
    assert again["runs"][0]["trace_hash"] == first["runs"][0]["trace_hash"] == read_trace(saved).hash
    assert again["runs"] == first["runs"]


def test_lengths_and_prefixes(tmp_path):
    path = tmp_path / "lengths.txt"
    path.write_text("3\n5\n")
    assert lengths(str(path)) == Empirical((3, 5), "lengths.txt")
    assert lengths("lognormal:128:1:1-512") == LogNormal(128.0, 1.0, 1, 512)
    assert lengths("8") == Uniform(8, 8)
    assert shared_prefix("64:8") == SharedPrefix(64, 8)
    found = bench_json(tmp_path, "--prompt", "4", "--shared-prefix", "60", "--requests", "3", "--warmup", "0")
    assert {r["prompt_tokens"] for r in found["runs"][0]["records"]} == {64}
    assert found["conditions"]["prompt"] == "60 shared + 4"


def test_the_run_line_says_all_of_it(capsys):
    assert main([*VIRTUAL, "--requests", "150", "--runs", "2"]) == 0
    line = capsys.readouterr().out.splitlines()[-1]
    for fact in (
        "Run: open loop",
        "latency from the schedule",
        "percentiles by linear interpolation",
        ", trace ",
        " and 1 more",
        "300 ok, 0 failed",
        ", achieved ",
        ", send lag p99 ",
        "output length as asked in 300 of 300",
        "steady state: steady",
        "virtual clock",
    ):
        assert fact in line


@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        (["--rate", "0"], "--rate"),
        (["--rate", "-3"], "--rate"),
        (["--rate", "nan"], "--rate"),
        (["--arrivals", "weekly"], "'weekly'"),
        (["--arrivals", "gamma:0"], "burstiness"),
        (["--arrivals", "gamma:x"], "gamma:B"),
        (["--arrivals", "ramp:5"], "ramp:A-B"),
        (["--arrivals", "ramp:5-0"], "ramp end"),
        (["--arrivals", "ramp:1-5", "--rate", "2"], "--rate"),
        (["--arrivals", "{bad}"], ":2: ContextTokens: got 'x'"),
        (["--arrivals", "{azure}", "--rate", "2"], "leave out --rate"),
        (["--arrivals", "{azure}", "--prompt", "4"], "--prompt"),
        (["--arrivals", "{azure}", "--requests", "3"], "the trace holds 2"),
        (["--arrivals", "{mooncake}"], "no time unit"),
        (["--arrivals", "{times}", "--requests", "5"], "at most 2"),
        (["--arrivals", "{folder}"], "must be poisson"),
        (["--arrivals", "gamma:1e-320"], "burstiness"),
        (["--arrivals", "ramp:1e300-5"], "ramp start"),
        (["--rate", "1e-300"], "1e-09"),
        (["--rate", "1e300"], "1e+09"),
        (["--time-unit", "ms"], "--time-unit"),
        (["--arrivals", "{azure}", "--time-unit", "ms"], "time unit"),
        (["--arrivals", "{json}"], "must be a JSON object ("),
        (["--closed-loop", "0"], "--closed-loop"),
        (["--closed-loop", "2", "--rate", "4"], "--closed-loop"),
        (["--closed-loop", "2", "--arrivals", "constant"], "--closed-loop"),
        (["--warmup", "-1"], "--warmup"),
        (["--prompt", "lognormal:1:0:1-2"], "--prompt"),
        (["--prompt", "{bad}"], ":1: got"),
        (["--shared-prefix", "0"], "--shared-prefix"),
        (["--shared-prefix", "2000", "--clock", "virtual"], "2048"),
        (["--save-trace", "/no/such/folder/t"], "/no/such/folder"),
    ],
)
def test_a_load_that_cannot_be_meant_is_one_line_and_exit_code_2(arguments, named, tmp_path, capsys):
    files = {
        "azure": AZURE,
        "bad": AZURE.replace("20,4", "x,4"),
        "mooncake": MOONCAKE,
        "json": '{"servelib_trace": 1',
        "times": "1\n2\n",
    }
    for name, text in files.items():
        (tmp_path / name).write_text(text)
    paths = {name: str(tmp_path / name) for name in files} | {"folder": str(tmp_path)}
    with pytest.raises(SystemExit) as caught:
        main(["bench", *(argument.format(**paths) for argument in arguments)])
    assert caught.value.code == 2
    shown = capsys.readouterr()
    assert (shown.out, shown.err.count("\n")) == ("", 1)
    assert named in shown.err


def test_compare_says_which_is_better_by_how_much_and_what_differs(tmp_path, capsys):
    bench_json(tmp_path, "--engine", "naive", name="a.json")
    bench_json(tmp_path, name="b.json")
    capsys.readouterr()
    out = tmp_path / "c.json"
    arguments = ["compare", str(tmp_path / "a.json"), str(tmp_path / "b.json"), "--json", str(out)]
    assert main(arguments) == 0
    shown = capsys.readouterr().out
    assert "They differ in: engine (naive / cached)." in shown
    assert "At 4/s, 3 pairs of runs:" in shown
    assert "B is better in ttft_p50 (B: -9" in shown
    assert "A is better" not in shown
    metrics = {m["metric"]: m for m in json.loads(out.read_text())["rates"][0]["metrics"]}
    assert metrics["e2e_p50"]["verdict"] == "B better"
    assert metrics["e2e_p50"]["ratio"]["low"] < metrics["e2e_p50"]["ratio"]["value"] < 0.1


def test_compare_with_itself_says_nothing_and_one_run_says_nothing(tmp_path, capsys):
    bench_json(tmp_path, name="a.json")
    bench_json(tmp_path, "--runs", "1", "--engine", "naive", name="b.json")
    capsys.readouterr()
    assert main(["compare", str(tmp_path / "a.json"), str(tmp_path / "a.json")]) == 0
    shown = capsys.readouterr().out
    assert "Nothing can be said." in shown
    assert "better in" not in shown
    assert main(["compare", str(tmp_path / "a.json"), str(tmp_path / "b.json")]) == 0
    shown = capsys.readouterr().out
    assert "1 pairs" in shown
    assert "better in" not in shown


def test_compare_reads_sweeps_rate_by_rate(tmp_path, capsys):
    for engine in ("naive", "cached"):
        path = tmp_path / f"{engine}.json"
        assert main(["sweep", "--clock", "virtual", "--engine", engine, "--rates", "1,8", "--requests", "8",
                     "--json", str(path)]) == 0  # fmt: skip
    capsys.readouterr()
    assert main(["compare", str(tmp_path / "naive.json"), str(tmp_path / "cached.json")]) == 0
    shown = capsys.readouterr().out
    assert "At 1/s, 3 pairs" in shown
    assert "At 8/s, 3 pairs" in shown


@pytest.mark.parametrize(
    ("options", "named"),
    [
        (["--rate", "8"], "rates of B"),
        (["--arrivals", "constant"], "arrivals of B: got 'constant', must be 'poisson', as in A"),
        (["--prompt", "4"], "prompt of B"),
        (["--output", "4"], "output of B"),
        (["--requests", "5"], "requests of B"),
        (["--slo-ttft", "2"], "slo of B"),
        (["--seed", "70"], "whole runs of B"),
    ],
)
def test_compare_refuses_another_workload_and_names_the_condition(options, named, tmp_path, capsys):
    bench_json(tmp_path, "--requests", "4", name="a.json")
    bench_json(tmp_path, "--requests", "4", *options, name="b.json")
    capsys.readouterr()
    with pytest.raises(SystemExit) as caught:
        main(["compare", str(tmp_path / "a.json"), str(tmp_path / "b.json")])
    assert caught.value.code == 2
    shown = capsys.readouterr()
    assert (shown.out, shown.err.count("\n")) == ("", 1)
    assert named in shown.err


@pytest.mark.parametrize(
    "text", ["", "[]", "{}", '{"conditions": {}}', '{"conditions": 3, "points": 1}', "\x00"]
)
def test_compare_refuses_a_file_that_is_no_result(text, tmp_path, capsys):
    path = tmp_path / "x.json"
    path.write_text(text)
    for name in (str(path), str(tmp_path / "none"), str(tmp_path)):
        with pytest.raises(SystemExit) as caught:
            main(["compare", name, name])
        assert caught.value.code == 2
        assert capsys.readouterr().err.count("\n") == 1


CAPACITY = ["capacity", "--engine", "cached", "--clock", "virtual", "--requests", "100"]


def test_capacity_finds_a_rate_writes_every_evaluation_and_keeps_to_its_budget(tmp_path, capsys):
    path = tmp_path / "c.json"
    assert main([*CAPACITY, "--max-runs", "60", "--tolerance", "0.05", "--json", str(path)]) == 0
    found = json.loads(path.read_text())
    low, high = found["capacity_interval"]
    assert low <= found["capacity"] <= high
    assert found["settled"]
    assert len(found["evaluations"]) <= 20
    by_rate = {e["rate"]: e["attainment"]["value"] for e in found["evaluations"]}
    assert by_rate[found["capacity"]] >= 0.9
    assert min(v for r, v in by_rate.items() if r > found["capacity"]) < 0.9
    assert f"Capacity {found['capacity']:.4g} requests/s [" in capsys.readouterr().out


def test_a_capacity_search_that_is_stopped_keeps_what_it_has(tmp_path, monkeypatch, capsys):
    from servelib.commands import capacity

    original, calls = capacity.sweep_system, iter(range(100))

    def stop(*arguments, **options):
        if next(calls) == 3:
            raise KeyboardInterrupt
        return original(*arguments, **options)

    monkeypatch.setattr(capacity, "sweep_system", stop)
    path = tmp_path / "c.json"
    assert main([*CAPACITY, "--json", str(path)]) == 130
    found = json.loads(path.read_text())
    assert [e["rate"] for e in found["evaluations"]] == [1.0, 2.0, 4.0]
    assert found["capacity"] is None
    assert "Capacity unknown" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        (["--target", "0"], "--target"),
        (["--target", "1.1"], "--target"),
        (["--start", "-1"], "--start"),
        (["--tolerance", "0"], "--tolerance"),
        (["--max-runs", "2"], "--max-runs"),
        (["--closed-loop", "2"], "capacity varies the rate"),
        (["--arrivals", "ramp:1-2"], "capacity varies the rate"),
    ],
)
def test_a_search_that_cannot_be_meant_is_refused(arguments, named, capsys):
    with pytest.raises(SystemExit) as caught:
        main([*CAPACITY, *arguments])
    assert caught.value.code == 2
    shown = capsys.readouterr()
    assert shown.err.count("\n") == 1
    assert named in shown.err


@pytest.mark.parametrize("command", ["compare", "capacity"])
def test_help_teaches_by_example(command, capsys):
    with pytest.raises(SystemExit):
        main([command, "--help"])
    assert f"  servelib {command} " in capsys.readouterr().out


@pytest.mark.parametrize("sent", [signal.SIGINT, signal.SIGTERM])
def test_a_run_that_is_told_to_stop_writes_every_record_it_has(sent, tmp_path):
    """A real process, stopped by a signal once its progress bar has moved."""
    path = tmp_path / "a.json"
    code = "import sys; from servelib.cli import main; sys.exit(main(sys.argv[1:]))"
    options = [*VIRTUAL, "--requests", "6000", "--runs", "4", "--prompt", "4", "--json", str(path)]
    process = subprocess.Popen(
        [sys.executable, "-c", code, *options],
        stderr=subprocess.PIPE,
        stdout=subprocess.PIPE,
        env={**os.environ, "PYTHONUNBUFFERED": "1"},
    )
    seen = b""
    while b"req/s]" not in seen or b"| 0/" in seen.rpartition(b"\r")[2]:
        chunk = process.stderr.read1(65536)
        assert chunk, seen
        seen += chunk
    process.send_signal(sent)
    out, _ = process.communicate(timeout=100)
    assert process.returncode == 130
    found = json.loads(path.read_text())
    assert found["runs"][-1]["interrupted"]
    assert found["summary"]["completed"] > 0
    assert b"INTERRUPTED" in out


@pytest.mark.parametrize(
    ("command", "written"),
    [
        ([*VIRTUAL, "--requests", "4"], ["--json"]),
        ([*VIRTUAL, "--requests", "4"], ["--json", "--html", "--hdr"]),
        ([*CAPACITY, "--max-runs", "6"], ["--json"]),
    ],
)
def test_files_that_can_no_longer_be_written_lose_no_result(command, written, tmp_path, capsys, monkeypatch):
    """The disk fills during the run."""
    from servelib.commands import save

    def full(path, text):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(save, "write_text", full)
    monkeypatch.setattr(save.tempfile, "tempdir", str(tmp_path))
    wanted = [part for name in written for part in (name, str(tmp_path / f"a{name.replace('--', '.')}"))]
    with pytest.raises(SystemExit) as caught:
        main([*command, *wanted])
    assert caught.value.code == 2
    shown = capsys.readouterr()
    last = shown.err.splitlines()[-1]
    assert last.count("No space left on device; the result is in ") == len(written)
    for name in written:
        (kept,) = tmp_path.glob(f"servelib-*{name.replace('--', '.')}")
        assert str(kept) in last
    (kept,) = tmp_path.glob("servelib-*.json")
    assert json.loads(kept.read_text())["conditions"]
    assert "Conditions: " in shown.out


def test_ctrl_c_while_results_are_written_breaks_off_nothing(tmp_path, monkeypatch, capsys):
    """The first wish to stop ends a run in order; a summary or a file in the making is finished."""
    from servelib.commands import save

    original = save.write_text

    def pressed(path, text):
        signal.raise_signal(signal.SIGINT)
        original(path, text)

    monkeypatch.setattr(save, "write_text", pressed)
    path = tmp_path / "a.json"
    assert main([*VIRTUAL, "--requests", "4", "--json", str(path)]) == 130
    assert json.loads(path.read_text())["summary"]["failed"] == 0
    assert "Conditions: " in capsys.readouterr().out


def test_a_second_ctrl_c_is_obeyed_at_once():
    before = signal.getsignal(signal.SIGINT), signal.getsignal(signal.SIGTERM)
    with stop_in_order() as should_stop:
        signal.raise_signal(signal.SIGTERM)
        assert should_stop()
        with pytest.raises(KeyboardInterrupt):
            signal.raise_signal(signal.SIGINT)
    assert (signal.getsignal(signal.SIGINT), signal.getsignal(signal.SIGTERM)) == before


@pytest.mark.parametrize("closed", ["stdout", "stderr"])
def test_a_reader_that_goes_away_loses_no_result(closed, tmp_path):
    """As ``servelib bench | head -1`` does."""
    path = tmp_path / "a.json"
    code = "import sys; from servelib.cli import main; sys.exit(main(sys.argv[1:]))"
    ours, theirs = os.pipe()
    os.close(ours)
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, closed: theirs}
    done = subprocess.run(
        [sys.executable, "-c", code, *VIRTUAL, "--requests", "4", "--json", str(path)],
        **pipes,
        timeout=100,
    )
    os.close(theirs)
    assert json.loads(path.read_text())["summary"]["failed"] == 0
    assert b"Traceback" not in (done.stderr or b"")
    assert done.returncode == (1 if closed == "stdout" else 0)
