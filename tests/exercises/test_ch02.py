"""The checks of chapter 2: each right diagnosis is proved, each wrong one refused with numbers."""

from __future__ import annotations

import inspect
import re

import pytest

from servelib.clock import VirtualClock
from servelib.exercises import ch02
from servelib.exercises.broken import BROKEN
from servelib.exercises.ch02 import DIAGNOSES, check_diagnosis, check_p99_samples
from servelib.exercises.suspects import EXPERIMENTS, WatchedServer, honest_load
from servelib.harness.drive import drive
from servelib.harness.metrics import run_metrics, ttft
from servelib.harness.trace import Poisson, Trace, TraceRequest, Uniform, make_trace
from servelib.request import Request
from servelib.sim.queueing import ServiceEngine

RIGHT = {
    "A": "closed loop",
    "B": "stamped at sending",
    "C": "failures dropped",
    "D": "schedule drifts",
    "E": "mean per request",
}
PROOF = {  # what the generator says, and what is so
    "A": ("1", "4"),
    "B": ("0.25 s", "2 s"),
    "C": ("100 %", "70 %"),
    "D": ("4.95 s", "0 s"),
    "E": ("0.119 s", "2 s"),
}


def test_the_right_diagnoses_pass_and_each_shows_its_proof():
    report = check_diagnosis(RIGHT).require()
    for result, (letter, (got, honest)) in zip(report.results, PROOF.items(), strict=True):
        assert result.name.startswith(f"{letter}: '{RIGHT[letter]}'. ")
        assert f" {got}; an honest load generator gives {honest}." in result.name


@pytest.mark.parametrize("letter", BROKEN)
@pytest.mark.parametrize("said", DIAGNOSES)
def test_a_wrong_diagnosis_is_refused_with_numbers_and_without_the_answer(letter, said):
    if RIGHT[letter] == said:
        return
    report = check_diagnosis({**RIGHT, letter: said})
    (failure,) = report.failures
    assert failure.name.startswith(f"{letter}: not '{said}'.")
    numbers = re.findall(r"\d+(?:\.\d+)?", failure.mistake.got)
    assert len(numbers) >= 2
    assert "gives the same" in failure.mistake.got
    assert failure.mistake.tried.startswith(f"{letter} with ")
    told = f"{failure.name} {failure.mistake}"
    assert RIGHT[letter] not in told
    assert DIAGNOSES[RIGHT[letter]] not in told


def test_the_order_of_the_list_gives_nothing_away():
    assert set(DIAGNOSES) == set(EXPERIMENTS)
    assert set(RIGHT.values()) < set(DIAGNOSES)
    for letter, said in zip(BROKEN, DIAGNOSES, strict=False):
        assert RIGHT[letter] != said


def test_a_typo_lists_the_known_diagnoses_and_offers_the_nearest():
    (failure,) = check_diagnosis({**RIGHT, "D": "schedule drift"}).failures
    for name in DIAGNOSES:
        assert repr(name) in failure.mistake.expected
    assert failure.mistake.hint == "Did you mean 'schedule drifts'?"
    (failure,) = check_diagnosis({**RIGHT, "D": "??"}).failures
    assert "DIAGNOSES" in failure.mistake.hint


def test_case_and_blanks_do_not_matter():
    sloppy = {letter.lower(): f" {said.upper()} ".replace(" ", "  ") for letter, said in RIGHT.items()}
    assert check_diagnosis(sloppy)


@pytest.mark.parametrize(
    "answers", [None, {}, [], "closed loop", {"A": None, "B": ""}, dict.fromkeys("ABCDE")]
)
def test_nothing_yet_is_not_a_mistake_of_ours(answers):
    report = check_diagnosis(answers)
    assert not report
    assert len(report.failures) == 5
    assert all(result.name.endswith("no diagnosis yet") for result in report.results)


@pytest.mark.parametrize("answer", [3, ["closed loop"], {"closed loop"}, object()])
def test_what_is_no_text_is_an_unknown_diagnosis(answer):
    (failure,) = check_diagnosis({**RIGHT, "A": answer}).failures
    assert "unknown diagnosis" in failure.name


def test_a_letter_too_many_is_named():
    (failure,) = check_diagnosis({**RIGHT, "F": "closed loop", 7: "x"}).failures[:1]
    assert "'F'" in failure.name
    assert "A, B, C, D, E" in failure.mistake.expected
    assert len(check_diagnosis({**RIGHT, "F": "closed loop", 7: "x"}).failures) == 2


@pytest.mark.parametrize("answers", [RIGHT, {}, {**RIGHT, "A": "schedule drifts"}])
def test_the_report_shows_itself(answers):
    report = check_diagnosis(answers)
    assert report.headline in str(report)
    assert "<li>" in report._repr_html_()


def test_without_a_fault_in_the_way_all_five_say_what_the_harness_says():
    # Far apart, nothing fails, nothing stalls: here each of the five is right.
    trace = Trace(
        tuple(TraceRequest(f"r{i}", 4.0 * i, (40,), 5) for i in range(6)), "given", "1", "5", seed=0
    )

    def world():
        clock = VirtualClock()
        return WatchedServer(clock, lambda *_: 0.02), trace, clock

    run = drive(*world())
    metrics = run_metrics(run)
    for generator in [honest_load, *BROKEN.values()]:
        claims = generator(*world())
        assert claims.ttft == pytest.approx([ttft(record) for record in run.requests])
        assert claims.gap_p99 == pytest.approx(metrics.gap_p99)
        assert claims.goodput == metrics.goodput_fraction == 1.0


def test_the_honest_one_says_what_the_harness_says_under_load():
    trace = make_trace(Poisson(1.5), 60, prompt=Uniform(1, 1), output=Uniform(1, 4))

    def world():
        clock = VirtualClock()
        return ServiceEngine(clock, lambda request: 0.5), trace, clock

    run = drive(*world())
    claims = honest_load(*world())
    assert claims.ttft == [ttft(record) for record in run.requests]
    assert claims.goodput == run_metrics(run).goodput_fraction
    assert claims.gap_p99 == run_metrics(run).gap_p99


def test_a_refused_request_is_a_failed_one():
    trace = Trace(
        (TraceRequest("r0", 0.0, (40,), 5000), TraceRequest("r1", 1.0, (40,), 1)), "given", "1", "-", 0
    )
    clock = VirtualClock()
    assert honest_load(ServiceEngine(clock, lambda request: 0.5), trace, clock).goodput == 0.5


def test_each_generator_can_be_read_in_one_go():
    for letter, generator in BROKEN.items():
        source = inspect.getsource(generator)
        assert source.count("\n") <= 18
        assert f'"""Load generator {letter}."""' in source


def test_the_watched_server_drops_an_aborted_request():
    server = WatchedServer(VirtualClock(), lambda *_: 1.0)
    for name in "ab":
        server.add_request(Request(name, (40,)))
    server.abort("a")
    server.abort("nobody")
    assert [output.request_id for output in server.step()] == ["b"]
    assert server.has_work


def test_p99_samples():
    assert check_p99_samples(368)
    assert check_p99_samples(368.0)


@pytest.mark.parametrize(
    ("answer", "hint"),
    [
        (100, "37 %"),
        (299, "both sides"),
        (367, "round up"),
        (72, "p95"),
        (6, "median"),
        (528, "99 % confidence"),
        (369, "Take logarithms"),
        (1000, "Take logarithms"),
        (None, "Put your number"),
        ("368", "Put your number"),
    ],
)
def test_each_slip_has_its_hint(answer, hint):
    (failure,) = check_p99_samples(answer).failures
    assert hint in failure.mistake.hint


def test_the_numbers_in_the_hints_are_true():
    assert round(100 * 0.99**100) == 37
    assert 0.99**368 <= 0.025 < 0.99**367
    assert set(ch02._LOOK) == set(BROKEN)
