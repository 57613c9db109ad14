"""``--kernels``: what runs on the fused kernels says so, and what cannot is refused in one line."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest

from servelib.cli import main
from servelib.commands import bench
from servelib.model.config import REFERENCE
from servelib.model.tinygpt import TinyGPT

FEW = ["--rate", "500", "--requests", "3", "--runs", "1", "--prompt", "4-9", "--output", "2-3"]


@pytest.fixture(autouse=True)
def small_model(monkeypatch: pytest.MonkeyPatch):
    model = TinyGPT(replace(REFERENCE, width=16, layers=1, heads=2, kv_heads=1, head_size=16, ffn_size=16))
    monkeypatch.setattr(bench, "reference_model", lambda threads: model)


@pytest.mark.parametrize("command", ["bench", "sweep"])
@pytest.mark.parametrize(("kernels", "named"), [("fused", True), ("pytorch", False), (None, False)])
def test_the_conditions_say_which_kernels_ran(command: str, kernels: str | None, named: bool, tmp_path):
    path = tmp_path / "a.json"
    rate = ["--rates", "500", *FEW[2:]] if command == "sweep" else FEW
    given = [] if kernels is None else ["--kernels", kernels]
    assert main([command, "--engine", "continuous", *given, *rate, "--json", str(path)]) == 0
    found = json.loads(path.read_text())
    assert (", fused kernels" in found["conditions"]["model"]) is named
    point = found["points"][0] if command == "sweep" else found
    assert point["summary"]["completed"] == 3


@pytest.mark.parametrize(
    ("line", "said"),
    [
        (["bench", "--kernels", "cuda"], "invalid choice: 'cuda'"),
        (["bench", "--engine", "static", "--kernels", "fused"], "of the continuous engine, not of static"),
        (["capacity", "--kernels", "fused"], "of the continuous engine, not of naive"),
        (
            ["sweep", "--engine", "continuous", "--clock", "virtual", "--kernels", "fused"],
            "needs --clock wall",
        ),
        (["bench", "--clock", "virtual", "--kernels", "pytorch"], "needs --clock wall"),
        (["bench", "--url", "http://x", "--model", "m", "--kernels", "pytorch"], "is of our own engines"),
        (["serve", "--engine", "naive", "--kernels", "fused", "--port", "0"], "not of naive"),
        (["serve", "--dtype", "bfloat16", "--kernels", "fused", "--port", "0"], "must be float32 on cpu"),
    ],
)
def test_what_cannot_be_meant_is_one_line(line: list[str], said: str, capsys):
    with pytest.raises(SystemExit) as end:
        main(line)
    shown = capsys.readouterr()
    assert (end.value.code, shown.out) == (2, "")
    assert said in shown.err
    assert shown.err.count("\n") == 1


def test_without_a_compiler_one_line_says_so(monkeypatch: pytest.MonkeyPatch, capsys):
    monkeypatch.setenv("CC", "no-such-compiler")
    with pytest.raises(SystemExit):
        main(["bench", "--engine", "continuous", "--kernels", "fused", *FEW])
    assert "--kernels fused: no C compiler found (CC is 'no-such-compiler'" in capsys.readouterr().err
