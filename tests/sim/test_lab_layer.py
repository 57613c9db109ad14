from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from servelib.engine.registry import ENGINES
from servelib.errors import InvalidRequestError
from servelib.harness.report import COLUMNS
from servelib.sim import lab
from servelib.sim.lab import Lab, around, fields, settings_from
from servelib.sim.occupancy import Filled
from servelib.sim.simulate import simulate

SMALL = {"engine": "cached", "rate": 8.0, "requests": 60}


def ask(page: Lab, given: dict[str, Any], **more: Any) -> dict[str, Any]:
    return json.loads(page.answer(json.dumps({"settings": given, **more})))


def test_the_form_offers_every_engine_and_its_defaults_are_allowed():
    offered = {field["name"]: [value for value, _ in field["choices"]] for field in fields()}
    assert offered["engine"] == list(ENGINES)
    assert settings_from({}) == settings_from({field["name"]: field["default"] for field in fields()})


def test_it_shows_what_simulate_gives():
    found, point = ask(Lab(), SMALL), simulate(settings_from(SMALL))
    estimates = point.summary.estimates()
    assert [row["value"] for row in found["headline"]] == [c.show(estimates[c.name]) for c in COLUMNS]
    assert found["conditions"] == point.conditions.line()
    assert found["rows"]["end"] == [round(r.end or 0.0, 6) for r in point.runs[0].requests]
    assert found["point"] == {"rate": 8.0, "goodput": point.summary.goodput_fraction.value}
    assert max(found["cache"]["tokens"]) > 0
    assert ask(Lab(), {**SMALL, "engine": "naive"})["cache"]["tokens"] == []


@pytest.mark.parametrize(("engine", "option"), [("static", "batch_size"), ("continuous", "max_num_seqs")])
def test_how_many_run_at_once_is_a_setting(engine, option):
    found = ask(Lab(), {**SMALL, "engine": engine, "batch": 3, "rate": 1000.0})
    assert f"{engine} ({option} 3) engine" in found["conditions"]
    assert max(found["count"]["running"]) == 3
    assert max(found["cache"]["tokens"]) > 0


def test_a_setting_of_some_engines_says_of_which():
    of = {field["name"]: field["engines"] for field in fields() if field["engines"]}
    assert of == {"batch": ("static", "continuous")}


def test_a_moved_slo_changes_the_goodput_and_runs_nothing_again(monkeypatch):
    page, tight = Lab(), {**SMALL, "rate": 20.0, "slo_ttft": 0.1}
    before = [ask(page, {**SMALL, "rate": 20.0}), ask(page, {**SMALL, "rate": 20.0}, rate=10.0)]
    wanted = [simulate(settings_from({**tight, "rate": rate})) for rate in (20.0, 10.0)]
    for name in ("replay", "curve"):
        monkeypatch.setattr(lab, name, None)
    found = [ask(page, tight), ask(page, tight, rate=10.0)]
    assert found[0]["point"]["goodput"] < before[0]["point"]["goodput"]
    assert [found[0]["point"]["goodput"], found[1]["goodput"]] == [
        point.summary.goodput_fraction.value for point in wanted
    ]
    goodput = wanted[0].summary.estimates()["goodput_fraction"]
    assert found[0]["headline"][-1]["value"] == COLUMNS[-1].show(goodput)


@pytest.mark.parametrize(
    ("given", "field", "says"),
    [
        ({"rate": 0}, "rate", "0.01"),
        ({"rate": None}, "rate", "None"),
        ({"engine": "warp"}, "engine", "naive, cached, static, continuous"),
        ({"engine": "static", "batch": 0}, "batch", "1"),
        (
            {
                "engine": "continuous",
                "batch": 1000,
                "model": "llama3-8b",
                "machine": "l4",
                "prompt_high": 3000,
            },
            "batch",
            "at most ",
        ),
        ({"seed": 1.5}, "seed", "integer"),
        ({"output_low": 50}, "output_low", "at most the longest, 48"),
        ({"requests": 2000, "output_high": 2000}, "requests", "at most 200 "),
        ({"prompt_high": 3000}, "prompt_high", "2048"),
        ({"model": "llama3-70b"}, "model", "float32"),
    ],
)
def test_what_cannot_be_is_one_line_by_its_field(given, field, says):
    errors = ask(Lab(), given)["errors"]
    assert list(errors) == [field]
    assert says in errors[field]
    assert "\n" not in errors[field]


def test_a_setting_from_elsewhere_is_refused_not_ignored():
    with pytest.raises(InvalidRequestError, match="speed"):
        settings_from({"speed": 3})


@settings(deadline=None, derandomize=True, max_examples=60)
@given(st.lists(st.tuples(st.floats(0, 10), st.integers(0, 100)), max_size=40))
def test_thinning_keeps_the_fullest_moment(steps):
    cache = [Filled(time, tokens, tokens) for time, tokens in sorted(steps)]
    thin = lab._thinned(cache, 10.0)
    assert max(thin["tokens"], default=0) == max((tokens for _, tokens in steps), default=0)
    for time, tokens in steps:
        assert thin["tokens"][int(lab.MOMENTS * time / 10.0)] >= tokens


@given(st.floats(0.01, 10_000))
def test_the_curve_surrounds_its_rate_on_a_grid_that_does_not_move(rate):
    rates = around(rate)
    assert rates[0] < rate < rates[-1]
    assert rates == sorted(set(rates))
    assert set(rates) <= {float(f"{2.0 ** (half / 2):.4g}") for half in range(-24, 40)}
