from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
from dataclasses import replace

import pytest

from servelib.cli import main
from servelib.commands import bench, calibrate
from servelib.commands.options import lengths, rates
from servelib.model.config import REFERENCE
from servelib.model.tinygpt import TinyGPT
from servelib.sim.model import CostedModel

VIRTUAL = ["bench", "--engine", "naive", "--clock", "virtual", "--rate", "4"]
WITHOUT_TORCH = """
import sys
for name in ("torch", "numpy", "scipy", "fastapi", "uvicorn"):
    sys.modules[name] = None  # importing it raises
from servelib.cli import main
sys.exit(main(sys.argv[1:]))
"""


def run(*arguments: str, code: str = WITHOUT_TORCH, seed: str = "0") -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", code, *arguments],
        env={**os.environ, "PYTHONHASHSEED": seed},
        capture_output=True,
        text=True,
        timeout=100,
    )


def test_virtual_bench_needs_no_torch_and_gives_the_same_bytes_every_time(tmp_path):
    files = [tmp_path / name for name in ("a.json", "b.json")]
    shown = []
    for path, seed in zip(files, ("1", "2"), strict=True):
        done = run(*VIRTUAL, "--json", str(path), seed=seed)
        assert (done.returncode, done.stderr.count("Error")) == (0, 0)
        assert "72/72" in done.stderr  # the progress bar
        shown.append(done.stdout)
    assert files[0].read_bytes() == files[1].read_bytes()
    assert shown[0] == shown[1]
    assert (
        shown[0]
        .splitlines()[-2]
        .startswith("Conditions: TinyGPT (reference, random weights) (5,838,080 params)")
    )
    found = json.loads(files[0].read_text())
    assert found["summary"]["completed"] == 72
    assert found["conditions"]["clock"] == "virtual"
    assert found["conditions"]["measured"] is None


@pytest.fixture
def tiny_model(monkeypatch):
    """A real model small enough to run thousands of steps a second."""
    model = TinyGPT(replace(REFERENCE, width=8, layers=1, heads=2, kv_heads=1, head_size=4, ffn_size=8))
    for command in (bench, calibrate):
        monkeypatch.setattr(command, "reference_model", lambda threads: model)


@pytest.mark.usefixtures("tiny_model")
def test_a_live_bench_runs_the_model(capsys, tmp_path):
    path = tmp_path / "live.json"
    tiny = ["--requests", "2", "--runs", "2", "--prompt", "4", "--output", "2-3", "--rate", "500"]
    assert main(["bench", "--engine", "cached", *tiny, "--json", str(path)]) == 0
    shown = capsys.readouterr()
    assert "cached engine" in shown.out
    assert ", torch " in shown.out
    assert ", measured 20" in shown.out
    found = json.loads(path.read_text())
    assert found["summary"]["completed"] == 4
    assert found["conditions"]["seeds"] == [7, 8]


def test_a_sweep_has_a_row_and_a_body_a_rate(capsys, tmp_path):
    path = tmp_path / "sweep.json"
    assert main(["sweep", "--clock", "virtual", "--rates", "1,4,8", "--runs", "2", "--json", str(path)]) == 0
    assert "arrival rates 1, 4, 8/s, 24 requests x 2 runs" in capsys.readouterr().out
    assert [point["rate"] for point in json.loads(path.read_text())["points"]] == [1.0, 4.0, 8.0]


def test_every_option_reaches_the_run(tmp_path):
    path, cost = tmp_path / "a.json", tmp_path / "cost.json"
    cost.write_text(json.dumps({"overhead": 0.5, "per_token": 0, "per_pair": 0, "per_cached": 0}))
    options = [
        "--engine",
        "cached",
        "--rate",
        "2",
        "--requests",
        "3",
        "--runs",
        "1",
        "--seed",
        "0",
        "--prompt",
        "5",
        "--output",
        "2-2",
    ]
    slo = ["--slo-ttft", "0.75", "--slo-itl", "0.6"]
    assert (
        main(["bench", "--clock", "virtual", *options, *slo, "--cost", str(cost), "--json", str(path)]) == 0
    )
    found = json.loads(path.read_text())
    about = found["conditions"]
    assert (about["engine"], about["seeds"], about["rates"]) == ("cached", [0], [2.0])
    assert (about["prompt"], about["output"], about["requests"], about["runs"]) == ("5", "2", 3, 1)
    assert about["slo"] == {"ttft": 0.75, "gap": 0.6}
    assert found["summary"]["gap_p50"] == pytest.approx(0.5)
    assert about["cost"] == "costs from cost.json"


@pytest.mark.usefixtures("tiny_model")
@pytest.mark.parametrize("clock", ["wall", "virtual"])
@pytest.mark.parametrize(
    ("engine", "options"),
    [("static", {"batch_size": 3}), ("continuous", {"max_num_seqs": 2, "max_num_batched_tokens": 70})],
)
def test_how_much_an_engine_takes_at_once_reaches_the_run(clock, engine, options, tmp_path):
    path = tmp_path / "a.json"
    given = [part for name, n in options.items() for part in (f"--{name.replace('_', '-')}", str(n))]
    few = [
        "--requests",
        "6",
        "--runs",
        "1",
        "--rate",
        "inf",
        "--prompt",
        "4",
        "--output",
        "3",
        "--warmup",
        "0",
    ]
    assert main(["bench", "--clock", clock, "--engine", engine, *given, *few, "--json", str(path)]) == 0
    found = json.loads(path.read_text())
    said = ", ".join(f"{name} {n}" for name, n in options.items())
    assert found["conditions"]["engine"] == f"{engine} ({said})"
    firsts = {record["events"][0][0] for record in found["runs"][0]["records"]}
    assert len(firsts) == {"static": 2, "continuous": 3}[engine]  # batches, one after the other


def test_readers():
    assert rates("1, 4,8") == [1.0, 4.0, 8.0]
    grown = rates("0.25:16:7")
    assert grown == pytest.approx([0.25, 0.5, 1, 2, 4, 8, 16])
    assert (grown[0], grown[-1]) == (0.25, 16.0)
    assert (lengths("32-96").label, lengths("64").label) == ("32-96", "64")


@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        ([], "COMMAND"),
        (["fly"], "fly"),
        (["bench", "--rate", "0"], "--rate"),
        (["bench", "--rate", "-1"], "--rate"),
        (["bench", "--rate", "nan"], "--rate"),
        (["bench", "--rate", "-inf"], "--rate"),
        (["bench", "--rate", "fast"], "'fast'"),
        (["bench", "--rates", "1"], "--rates"),
        (["bench", "--engine", "warp"], "warp"),
        (["bench", "--requests", "0"], "--requests"),
        (["bench", "--runs", "1.5"], "--runs"),
        (["bench", "--seed", "x"], "--seed"),
        (["bench", "--prompt", "96-32"], "96-32"),
        (["bench", "--prompt", "0-3"], "--prompt"),
        (["bench", "--output", "a-b"], "--output"),
        (["bench", "--output", "-3"], "--output"),
        (["bench", "--slo-ttft", "0"], "--slo-ttft"),
        (["bench", "--slo-itl", "-0.1"], "--slo-itl"),
        (["bench", "--clock", "sun"], "sun"),
        (["bench", "--json", "/no/such/folder/a.json"], "/no/such/folder"),
        (["bench", "--json", "/"], "folder"),
        (["bench", "--cost", "x.json"], "--clock virtual"),
        (["bench", "--clock", "virtual", "--cost", "/no/such.json"], "/no/such.json"),
        (["bench", "--clock", "virtual", "--prompt", "2000-2040"], "2048"),
        (["sweep", "--rates", ""], "--rates"),
        (["sweep", "--rates", "1,,2"], "--rates"),
        (["sweep", "--rates", "1:2"], "LOW:HIGH:COUNT"),
        (["sweep", "--rates", "4:2:5"], "LOW below HIGH"),
        (["sweep", "--rates", "1:2:1"], "--rates"),
        (["serve", "--port", "70000"], "--port"),
        (["serve", "--batch-size", "4"], "static"),
        (["bench", "--batch-size", "4"], "--batch-size"),
        (["bench", "--engine", "static", "--max-num-seqs", "4"], "continuous"),
        (["bench", "--engine", "continuous", "--max-num-seqs", "0"], "--max-num-seqs"),
        (["sweep", "--engine", "continuous", "--max-num-batched-tokens", "63"], "at least 64"),
        (["simulate", "--max-num-seqs", "4"], "not of naive"),
        (["bench", "--url", "http://127.0.0.1:1", "--max-num-seqs", "4"], "leave it out with --url"),
        (["calibrate", "--requests", "7"], "--requests"),
        (["bench", "--requests", "9" * 20], "1000000"),
        (["bench", "--requests", "9" * 5000], "1000000"),
        (["bench", "--prompt", "9" * 5000], "LOW-HIGH"),
        (["bench", "--seed", "9" * 5000], "an integer"),
        (["bench", "--arrivals", "9" * 5000], "must be poisson"),
        (["bench", "--runs", "9" * 9], "10000"),
        (["capacity", "--clock", "virtual", "--start", "1e9"], "--start"),
        (["capacity", "--clock", "virtual", "--start", "1e-9"], "--start"),
    ],
)
def test_a_bad_argument_is_one_line_and_exit_code_2(arguments, named, capsys):
    with pytest.raises(SystemExit) as caught:
        main(arguments)
    assert caught.value.code == 2
    shown = capsys.readouterr()
    assert shown.out == ""
    assert shown.err.count("\n") == 1
    assert len(shown.err) < 800
    assert shown.err.startswith("servelib")
    assert named in shown.err


def test_a_port_in_use_is_one_line_and_exit_code_2(capsys):
    with socket.create_server(("127.0.0.1", 0)) as taken, pytest.raises(SystemExit) as caught:
        main(["serve", "--port", str(taken.getsockname()[1])])
    assert caught.value.code == 2
    assert capsys.readouterr().err.count("\n") == 1


@pytest.mark.parametrize("command", ["bench", "sweep", "serve", "calibrate"])
def test_help_teaches_by_example(command, capsys):
    with pytest.raises(SystemExit) as caught:
        main([command, "--help"])
    assert caught.value.code == 0
    assert f"  servelib {command} " in capsys.readouterr().out


def test_an_interrupted_run_writes_what_it_has_and_exits_130(tmp_path, monkeypatch, capsys):
    original, calls = CostedModel.next_logits, iter(range(10**9))

    def interrupt(self, ids, cache=None):
        if next(calls) == 1000:
            raise KeyboardInterrupt
        return original(self, ids, cache)

    monkeypatch.setattr(CostedModel, "next_logits", interrupt)
    path = tmp_path / "a.json"
    assert main([*VIRTUAL, "--json", str(path)]) == 130
    found = json.loads(path.read_text())
    assert [run["interrupted"] for run in found["runs"]] == [False, True]
    assert found["summary"]["offered"] == 48
    assert sum(r["output_tokens"] for run in found["runs"] for r in run["records"]) == 1000
    assert "INTERRUPTED" in capsys.readouterr().out


def test_a_broken_run_writes_what_it_has_and_exits_1(tmp_path, monkeypatch, capsys):
    original = bench.make_engine

    def breaking(name, model, clock, spans=None):
        engine = original(name, model, clock, spans)
        steps = iter(range(10**9))
        step = engine.step

        def fail():
            if next(steps) == 100:
                raise RuntimeError("the engine is on fire")
            return step()

        monkeypatch.setattr(engine, "step", fail)
        return engine

    monkeypatch.setattr(bench, "make_engine", breaking)
    path = tmp_path / "a.json"
    assert main([*VIRTUAL, "--json", str(path)]) == 1
    shown = capsys.readouterr()
    assert "on fire" in shown.err.splitlines()[-1]
    (only,) = json.loads(path.read_text())["runs"]
    assert sum(r["output_tokens"] for r in only["records"]) == 100


@pytest.mark.usefixtures("tiny_model")
def test_calibrate_writes_a_cost_that_bench_reads(tmp_path, capsys):
    cost = tmp_path / "cost.json"
    assert main(["calibrate", "--requests", "8", "--json", str(cost)]) == 0
    assert "held-out steps: median" in capsys.readouterr().out
    assert json.loads(cost.read_text())["command"] == "servelib calibrate --requests 8"
    assert main([*VIRTUAL, "--cost", str(cost)]) == 0
    assert "virtual time (step cost fitted on " in capsys.readouterr().out
