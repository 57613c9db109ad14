"""The checks of chapter 2: what is wrong with five load generators, and how many requests a p99 needs."""

from __future__ import annotations

import difflib
from collections.abc import Mapping
from typing import Any

from servelib.exercises.broken import BROKEN
from servelib.exercises.check import Check, Mistake, Report, run_checks
from servelib.exercises.number import check_number
from servelib.exercises.suspects import EXPERIMENTS
from servelib.harness.stats import minimum_n

DIAGNOSES = {
    "schedule drifts": "it sleeps from one send to the next, so that every delay is passed on",
    "mean per request": "it averages each request's gaps before it takes the percentile",
    "empty event counted": "an event without a token passes for the first token",
    "stamped at sending": "it counts latency from when it got round to sending, not from the schedule",
    "failures dropped": "failed requests are missing from the denominator",
    "closed loop": "it waits for an answer before it sends the next request",
}
"""What can be wrong. Each of the five has one of these; one is nobody's."""

_LOOK = {
    "A": "Follow two requests through its loop: what is the server doing when the second is sent?",
    "B": "Follow one request that falls due while the server is busy: which times does it get?",
    "C": "Follow a request that fails: in which lines does it still count?",
    "D": "Follow ten sends, each a little late: when does the eleventh come?",
    "E": "Follow one long gap from the record to the report: where does it go?",
}


def check_diagnosis(answers: Any) -> Report:
    """Check what the reader says is wrong with each load generator, ``{"A": "...", ...}``.

    Each answer is a key of ``DIAGNOSES``. It is put to an experiment in virtual time that would show
    that fault, and the report says what was seen. Never raises, and never names the right answer.
    """
    given = answers if isinstance(answers, Mapping) else {}
    said = {letter.strip().upper() if isinstance(letter, str) else letter: a for letter, a in given.items()}
    checks = [_diagnosis(letter, said.get(letter)) for letter in BROKEN]
    checks += [_stranger(letter) for letter in said if letter not in BROKEN]
    return run_checks("Load generators", checks)


def check_p99_samples(answer: Any) -> Report:
    """Check how many requests bound a p99 on both sides with 95 % confidence. Never raises."""
    right = minimum_n(0.99)
    return check_number(
        "Samples for a p99",
        answer,
        right,
        tried="your number of requests, n",
        expected="the fewest requests of which the largest is sure enough above the true p99: at 95 % "
        "confidence, 2.5 % is left over on either side",
        hint="All n lie below the true p99 with probability 0.99 to the power of n. That must be at most "
        "0.025. Take logarithms.",
        slips=[
            (100, "One in a hundred is what p99 means. With 100, all lie below it in 37 % of runs."),
            (
                minimum_n(0.99, 0.90),
                "That leaves 5 % on one side. Bounded on both sides, each gets half of the 5 %.",
            ),
            (right - 1, "Just too few: round up, not down. At this n the probability is still above 0.025."),
            (minimum_n(0.95), "That is enough for a p95. Which fraction lies below the p99?"),
            (minimum_n(0.5), "That is enough for the median. Which fraction lies below the p99?"),
            (
                minimum_n(0.99, 0.99),
                "That is for 99 % confidence. The percentile is 99; the confidence is 95 %.",
            ),
        ],
        tolerance=1e-4,  # a whole number, so nothing but the number itself
    )


def _diagnosis(letter: str, answer: Any) -> Check:
    known = ", ".join(repr(name) for name in DIAGNOSES)
    if answer is None or (isinstance(answer, str) and not answer.strip()):
        tried = f"your diagnosis of {letter}"
        mistake = Mistake(tried, f"one of {known}", "nothing yet", _LOOK[letter])
        return _failed(f"{letter}: no diagnosis yet", mistake)
    said = " ".join(answer.lower().split()) if isinstance(answer, str) else answer
    if not isinstance(said, str) or said not in DIAGNOSES:
        near = difflib.get_close_matches(said, DIAGNOSES, n=1) if isinstance(said, str) else []
        hint = f"Did you mean {near[0]!r}?" if near else "Copy one of the keys of DIAGNOSES."
        mistake = Mistake(f"your diagnosis of {letter}", f"one of {known}", repr(answer), hint)
        return _failed(f"{letter}: unknown diagnosis {answer!r}", mistake)
    experiment = EXPERIMENTS[said]
    guilty, evidence = experiment.evidence(BROKEN[letter])
    if guilty:
        return Check(f"{letter}: {said!r}. {_sentence(evidence)}", lambda: None)
    expected = f"a number that is off, if it is true that {DIAGNOSES[said]}"
    mistake = Mistake(f"{letter} with {experiment.tried}", expected, evidence, _LOOK[letter])
    return _failed(f"{letter}: not {said!r}. {_sentence(evidence)}", mistake)


def _stranger(letter: Any) -> Check:
    letters = ", ".join(BROKEN)
    mistake = Mistake("your diagnoses", f"the letters {letters}", repr(letter), "There is no such generator.")
    return _failed(f"{letter!r}: unknown generator", mistake)


def _failed(name: str, mistake: Mistake) -> Check:
    def run() -> None:
        raise mistake

    return Check(name, run)


def _sentence(text: str) -> str:
    return text[0].upper() + text[1:] + "."
