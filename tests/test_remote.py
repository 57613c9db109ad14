"""``bench`` and ``sweep`` against a server, and the files they write."""

from __future__ import annotations

import json
import socket
import subprocess
import sys

import pytest

from servelib.cli import main
from servelib.engine.naive import NaiveEngine
from servelib.model.scripted import ScriptedModel
from servelib.server.run import BackgroundServer

SMALL = ["--requests", "4", "--runs", "2", "--prompt", "4-6", "--output", "3-5"]


@pytest.fixture(scope="module")
def url():
    with BackgroundServer(NaiveEngine(ScriptedModel([97]), use_cache=True)) as server:
        yield server.url


@pytest.mark.parametrize("endpoint", ["completions", "chat"])
def test_bench_measures_a_server_and_writes_every_file(url, endpoint, tmp_path, capsys):
    files = {name: tmp_path / f"a.{name}" for name in ("json", "html", "hdr")}
    written = [part for name, path in files.items() for part in (f"--{name}", str(path))]
    aimed = ["--url", url, "--model", "scripted", "--endpoint", endpoint, "--rate", "200"]
    assert main(["bench", *aimed, *SMALL, *written]) == 0
    shown = capsys.readouterr().out
    path = {"completions": "completions", "chat": "chat/completions"}[endpoint]
    assert f"Conditions: scripted, {url}/v1/{path}, client on " in shown
    assert "torch" not in shown
    found = json.loads(files["json"].read_text())
    assert (found["summary"]["completed"], found["summary"]["failed"]) == (8, 0)
    assert {r["tokens_from"] for run in found["runs"] for r in run["records"]} == {"usage"}
    assert [run["self_check"]["driver"] for run in found["runs"]] == ["http", "http"]
    assert found["compat"]["max_concurrent_requests"] >= 1
    assert files["html"].read_text().startswith("<!doctype html>")
    assert files["hdr"].read_text().count("Tag=200_") == 10


def test_a_sweep_over_http(url, capsys):
    aimed = ["--url", url, "--model", "scripted", "--rates", "100,200"]
    assert main(["sweep", *aimed, *SMALL]) == 0
    assert "arrival rates 100, 200/s" in capsys.readouterr().out


def closed_port() -> str:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        return f"http://127.0.0.1:{taken.getsockname()[1]}"


@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        (["--url", "CLOSED", "--model", "m"], "connection refused"),
        (["--url", "URL", "--model", "nope"], "must be 'scripted'"),
        (["--url", "URL/v7", "--model", "scripted"], "--endpoint"),
        (["--url", "TLS", "--model", "scripted"], "TLS failed"),
        (["--url", "URL"], "--model NAME"),
        (["--url", "here", "--model", "m"], "url"),
        (["--url", "URL", "--model", "m", "--clock", "virtual"], "--clock wall"),
        (["--url", "URL", "--model", "m", "--cost", "a.json"], "--cost"),
        (["--url", "URL", "--model", "m", "--api-key-env", "NO_SUCH_KEY"], "NO_SUCH_KEY"),
        (["--url", "URL", "--model", "m", "--extra-body", "[1]"], "JSON object"),
        (["--url", "URL", "--model", "m", "--timeout", "0"], "--timeout"),
        (["--url", "URL", "--model", "m", "--endpoint", "embeddings"], "embeddings"),
        (["--url", "URL", "--model", "m", "--extra-body", '{"a": NaN}'], "JSON object"),
        (["--url", "URL ", "--model", "m"], "url"),
        (["--url", "URL", "--model", "m", "--engine", "naive"], "--engine"),
        (["--url", "URL", "--model", "m", "--threads", "2"], "--threads"),
        (["--model", "m"], "--model needs --url"),
        (["--timeout", "3"], "--timeout needs --url"),
        (["--html", "/no/such/folder/a.html"], "/no/such/folder"),
    ],
)
def test_what_cannot_be_measured_is_one_line_and_exit_code_2(arguments, named, url, capsys):
    aims = {"URL": url, "TLS": url.replace("http:", "https:"), "CLOSED": closed_port()}
    typed = []
    for argument in arguments:
        for name, aim in aims.items():
            if argument.startswith(name):
                argument = argument.replace(name, aim)
        typed.append(argument)
    with pytest.raises(SystemExit) as caught:
        main(["bench", *SMALL, *typed])
    assert caught.value.code == 2
    shown = capsys.readouterr()
    assert shown.out == ""
    assert shown.err.count("\n") == 1
    assert named in shown.err


def test_a_missing_package_is_one_line_and_other_runs_do_not_need_it():
    code = """
import sys
for name in ("aiohttp", "plotly", "hdrh"):
    sys.modules[name] = None
from servelib.cli import main
sys.exit(main(sys.argv[1:]))
"""
    virtual = ["bench", "--clock", "virtual", "--requests", "2", "--runs", "1"]
    for arguments, code_wanted, said in (
        (virtual, 0, "Conditions"),
        (["bench", "--url", "http://127.0.0.1:1", "--model", "m"], 2, "servelib[server]"),
        ([*virtual, "--html", "a.html"], 2, "servelib[reports]"),
        ([*virtual, "--hdr", "a.hlog"], 2, "servelib[reports]"),
    ):
        done = subprocess.run(
            [sys.executable, "-c", code, *arguments], capture_output=True, text=True, timeout=60
        )
        assert done.returncode == code_wanted, done.stderr
        assert said in done.stdout + done.stderr
