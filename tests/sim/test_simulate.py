from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import replace
from itertools import pairwise

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
from servelib.sim.occupancy import Filled, Life, padded_fill
from servelib.sim.simulate import Reached, Settings, curve, replay, simulate

BIG = Settings(engine="cached", machine="h100", model="llama3-70b", rate=2.0, requests=40)
WITHOUT_TORCH = """
import sys
for name in ("torch", "numpy", "scipy"):
    sys.modules[name] = None  # importing it raises
from servelib.cli import main
sys.exit(main(sys.argv[1:]))
"""


@pytest.mark.parametrize(
    "settings",
    [Settings(), BIG, replace(BIG, engine="continuous"), replace(BIG, engine="naive", arrivals="gamma:0.5")],
)
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


CROWD = replace(BIG, model="llama3-8b", devices=1, rate=200.0, requests=60)


@pytest.mark.parametrize("engine", ["static", "continuous"])
def test_a_batch_serves_a_crowd_that_one_at_a_time_does_not(engine):
    alone, together = simulate(replace(CROWD, engine="cached")), simulate(replace(CROWD, engine=engine))
    assert together.summary.ttft_p99.value < alone.summary.ttft_p99.value / 2
    assert together.summary.output_tokens_per_second.value > 2 * (
        alone.summary.output_tokens_per_second.value
    )


def test_continuous_batches_let_nobody_wait_for_a_batch_to_end():
    static, continuous = (replay(replace(CROWD, engine=engine)) for engine in ("static", "continuous"))

    def together(seen):
        return max(sum(a.admitted <= b.admitted < a.end for a in seen.lives) for b in seen.lives)

    assert together(static) == 8
    assert 8 < together(continuous) <= 60
    for earlier, later in pairwise(continuous.lives):
        assert earlier.admitted <= later.admitted


def test_what_a_batch_holds_in_the_cache():
    for engine in ("static", "continuous"):
        seen = replay(replace(CROWD, engine=engine))
        assert seen.cache[-1].tokens == 0
        assert min(filled.tokens for filled in seen.cache) == 0
        assert max(filled.tokens for filled in seen.cache) <= (8 if engine == "static" else 60) * 144
    # By hand: prompts of 8, outputs of 4 and all at once: every row holds its prompt and 3 inputs.
    by_hand = replace(
        CROWD, engine="static", prompt=Uniform(8, 8), output=Uniform(4, 4), requests=8, rate=1e6
    )
    lone, *rest = [filled.tokens for filled in replay(by_hand).cache]
    assert [lone, *rest] == [8, 9, 10, 0, 7 * 8, 7 * 9, 7 * 10, 0]  # the first came alone


def test_padded_rows_hold_pads_and_finished_rows_until_the_batch_ends():
    def life(prompt, tokens):
        events = tuple((float(i + 1), 1) for i in range(tokens))
        return Life("x", 0.0, 0.5, 1.0, events[-1][0], prompt, events)

    filled = padded_fill([life(5, 1), life(2, 3)], 2)
    assert filled == [Filled(1.0, 10, 20), Filled(2.0, 12, 24), Filled(3.0, 0, 0)]
    assert padded_fill([], 2) == []


def test_the_memory_says_how_many_places_there_are():
    tight = replace(BIG, prompt=Uniform(4000, 4000), output=Uniform(100, 200), requests=10, rate=100.0)
    assert tight.system.cost().cache_tokens // 4200 == 13
    conditions = simulate(replace(tight, engine="continuous")).conditions
    assert conditions.engine == "continuous (max_num_seqs 13, slot_size 4200)"
    assert simulate(replace(tight, engine="static")).conditions.engine == "static"
    with pytest.raises(InvalidRequestError, match="at most 13: places of 4200 tokens") as caught:
        simulate(replace(tight, engine="continuous", options={"max_num_seqs": 14}))
    assert caught.value.field == "max_num_seqs"


@pytest.mark.parametrize(
    ("engine", "options", "said"),
    [
        ("cached", {"batch_size": 4}, "not of cached"),
        ("continuous", {"batch_size": 4}, "not of continuous"),
        ("static", {"batch_size": 0}, "batch size"),
        ("continuous", {"max_num_batched_tokens": 1}, "at least 64"),
    ],
)
def test_an_option_that_cannot_be_is_said_before_anything_runs(engine, options, said):
    with pytest.raises(InvalidRequestError, match=said):
        Settings(engine=engine, options=options).system.maker()
