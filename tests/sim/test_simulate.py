from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import replace

import pytest

from servelib.cli import main
from servelib.engine import registry
from servelib.engine.naive import NaiveEngine
from servelib.errors import InvalidRequestError
from servelib.harness.lengths import Uniform
from servelib.harness.metrics import SLO
from servelib.harness.report import point_document, to_json
from servelib.harness.sweep import SweepError
from servelib.request import SampledToken, StepOutput
from servelib.sim.simulate import Reached, Settings, curve, replay, simulate

BIG = Settings(engine="cached", machine="h100", model="llama3-70b", rate=2.0, requests=40)
WITHOUT_TORCH = """
import sys
for name in ("torch", "numpy", "scipy"):
    sys.modules[name] = None  # importing it raises
from servelib.cli import main
sys.exit(main(sys.argv[1:]))
"""


@pytest.mark.parametrize("settings", [Settings(), BIG, replace(BIG, engine="naive", arrivals="gamma:0.5")])
def test_the_command_writes_what_the_function_gives(tmp_path, settings):
    path = tmp_path / "a.json"
    arguments = ["--engine", settings.engine, "--machine", settings.machine, "--model", settings.model]
    arguments += ["--rate", str(settings.rate), "--requests", str(settings.requests)]
    assert main(["simulate", *arguments, "--arrivals", settings.arrivals, "--json", str(path)]) == 0
    assert path.read_text() == to_json(point_document(simulate(settings)))


def test_the_same_bytes_in_another_process_without_torch(tmp_path):
    texts = []
    for seed in ("1", "2"):
        path = tmp_path / f"{seed}.json"
        command = ["simulate", "--machine", "l4", "--model", "qwen3-8b", "--json", str(path)]
        environment = {**os.environ, "PYTHONHASHSEED": seed}
        code = [sys.executable, "-c", WITHOUT_TORCH, *command]
        subprocess.run(code, env=environment, check=True, capture_output=True, timeout=100)
        texts.append(path.read_bytes())
    assert texts[0] == texts[1]
    assert json.loads(texts[0])["conditions"]["cost"].startswith("roofline of NVIDIA L4")


def test_the_reference_machine_is_charged_the_fitted_cost():
    assert "fitted on" in (simulate(Settings()).conditions.cost or "")
    assert "roofline" in (simulate(Settings(machine="h100")).conditions.cost or "")


def test_what_is_reached_of_a_machine_scales_its_times(tmp_path):
    half = replace(BIG, reached=Reached(0.5, 0.5))
    assert simulate(half).summary.gap_p50.value == pytest.approx(2 * simulate(BIG).summary.gap_p50.value)
    late = replace(BIG, reached=Reached(overhead=0.5))
    assert simulate(late).summary.gap_p50.value == pytest.approx(0.5 + simulate(BIG).summary.gap_p50.value)
    assert "roofline" in (simulate(Settings(reached=Reached(0.7, 0.2, 3e-4))).conditions.cost or "")
    path = tmp_path / "a.json"
    command = ["simulate", "--reached", "0.7,0.2,0.0003", "--requests", "24", "--json", str(path)]
    assert main(command) == 0
    assert path.read_text() == to_json(point_document(simulate(Settings(reached=Reached(0.7, 0.2, 3e-4)))))


def test_a_curve_asks_the_same_things_faster():
    slow, fast = curve(replace(BIG, slo=SLO(2.0, 0.1)), [0.5, 5.0])
    assert [r.prompt_tokens for r in slow.runs[0].requests] == [
        r.prompt_tokens for r in fast.runs[0].requests
    ]
    assert slow.summary.ttft_p50.value < fast.summary.ttft_p50.value


def test_a_replay_is_the_simulation_and_each_life_adds_up():
    seen = replay(BIG)
    assert to_json(point_document(seen.point)) == to_json(point_document(simulate(BIG)))
    assert seen.capacity == 57_655
    previous = 0.0
    for life, record in zip(seen.lives, seen.point.runs[0].requests, strict=True):
        queued, prefill, decode = life.intervals()
        assert [queued[0], prefill[0], decode[0]] == ["queued", "prefill", "decode"]
        assert queued[1] == record.scheduled
        assert prefill[1] == pytest.approx(max(previous, record.sent))  # one at a time, in order
        assert prefill[2] == record.events[0][0]
        assert decode[2] == record.end
        previous = record.end


def test_the_cache_holds_one_request_at_a_time():
    seen = replay(BIG)
    assert seen.cache[-1].tokens == 0
    # Of the output the last token is never an input, and what the last step added ends with it.
    longest = max(r.prompt_tokens + r.output_tokens - 2 for r in seen.point.runs[0].requests)
    assert max(filled.tokens for filled in seen.cache) == longest
    assert all(filled.bytes == filled.tokens * 327_680 for filled in seen.cache)
    assert replay(replace(BIG, engine="naive")).cache == []  # it keeps nothing


@pytest.mark.parametrize(
    ("changed", "said"),
    [
        ({"engine": "warp"}, "must be one of naive, cached"),
        ({"machine": "h1"}, "must be one of cpu"),
        ({"model": "gpt"}, "must be one of tinygpt"),
        ({"model": "tinygpt", "prompt": Uniform(2000, 2040)}, "2048"),
        ({"devices": 1}, "take 2 devices"),
        ({"machine": "tpu-v5e"}, "8 x 16 GB"),
        ({"machine": "h200", "devices": 1}, "141"),
        ({"machine": "tpu-v5e", "model": "tinygpt"}, "dtype"),
        ({"machine": "cpu"}, "dtype"),
        ({"rate": 0.0}, "rate"),
        ({"requests": 0}, "requests"),
        ({"arrivals": "tides"}, "arrivals"),
        ({"model": "llama3-8b", "devices": 1, "output": Uniform(1, 130_000)}, None),
        ({"machine": "l4", "model": "llama3-8b", "devices": 1, "output": Uniform(1, 130_000)}, "beside"),
    ],
)
def test_settings_that_cannot_be_are_one_clear_error(changed, said):
    settings = replace(BIG, **changed)
    if said is None:  # a long answer fits one H100 beside an 8B model
        assert settings.system.maker()
        return
    with pytest.raises(InvalidRequestError, match=said):
        simulate(settings)


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--machine", "h1"], "one of cpu, h200"),
        (["--model", "gpt"], "one of tinygpt"),
        (["--machine", "h100", "--model", "llama3-70b", "--devices", "1"], "take 2 devices"),
        (["--machine", "tpu-v5e", "--model", "llama3-70b"], "8 x 16 GB"),
        (["--prompt", "2000-2040"], "2048"),
        (["--devices", "0"], "--devices"),
        (["--reached", "0.5"], "two shares"),
        (["--reached", "2,0.5"], "at most 1"),
        (["--reached", "0.5,0.5,-1"], "above 0"),
        (["--reached", "0.5,,"], "above 0"),
    ],
)
def test_the_command_says_it_in_one_line(capsys, arguments, said):
    with pytest.raises(SystemExit) as end:
        main(["simulate", *arguments])
    shown = capsys.readouterr().err
    assert end.value.code == 2
    assert shown.count("\n") == 1
    assert said in shown


class Babbler(NaiveEngine):
    """Never ends a request."""

    def step(self) -> list[StepOutput]:
        return [replace(output, finish_reason=None) for output in super().step()]


class Endless(NaiveEngine):
    """Gives its first request one token after another, for ever."""

    def step(self) -> list[StepOutput]:
        return [StepOutput("7-0", (SampledToken(1),))]


class Mute(NaiveEngine):
    """Answers, but with nothing in it."""

    def step(self) -> list[StepOutput]:
        return [StepOutput("7-0", ())]


class Stuck(NaiveEngine):
    """Has work and does none."""

    def step(self) -> list[StepOutput]:
        return []


@pytest.mark.parametrize(
    ("engine", "said"),
    [
        (Babbler, "never finished"),
        (Endless, "more tokens than were asked for"),
        (Mute, "gave nothing"),
        (Stuck, "gave nothing"),
    ],
)
def test_an_engine_without_end_or_progress_is_an_error_not_a_hang(monkeypatch, engine, said):
    made = {**registry.ENGINES, "bad": lambda model, clock, spans: engine(model, clock=clock)}
    monkeypatch.setattr(registry, "ENGINES", made)  # where it is made, and where the name is checked
    monkeypatch.setattr("servelib.sim.simulate.ENGINES", made)
    broken = None
    try:
        point = simulate(Settings(engine="bad", rate=1000.0))
    except SweepError as error:
        broken, point = str(error), error.points[0]
    assert point.summary.completed == 0
    errors = {record.error for record in point.runs[0].requests if record.error}
    assert said in (broken or "") or any(said in error for error in errors)
