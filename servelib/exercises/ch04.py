"""The checks of chapter 4: a detokeniser, stop strings, and what hanging up saves."""

from __future__ import annotations

from typing import Any

from servelib.exercises.check import Report, run_checks
from servelib.exercises.detokenizing import MakeDetokenizer, detokenizer_checks
from servelib.exercises.number import check_number
from servelib.exercises.stopping import MakeMatcher, stop_checks


def check_detokenizer(make: MakeDetokenizer, *, limit: float = 5.0) -> Report:
    """Test an incremental detokeniser: ``make(tokenizer)`` has ``push(ids)`` and ``finish()``, giving text.

    Each check gets new ones and at most ``limit`` seconds. Never raises: the report explains.
    """
    return run_checks("Your detokeniser", detokenizer_checks(make), limit=limit)


def check_stops(make: MakeMatcher, *, limit: float = 5.0) -> Report:
    """Test stop strings: ``make(stops)`` has ``push(text)``, ``finish()`` and ``matched``.

    Each check gets new ones and at most ``limit`` seconds. Never raises: the report explains.
    """
    return run_checks("Your stop strings", stop_checks(make), limit=limit)


def check_abort_gain(answer: Any, *, leave: float, after: float) -> Report:
    """Check how many times more requests a server takes once it stops working for those who left.

    A fraction ``leave`` of the callers hang up after a fraction ``after`` of their tokens. Right
    within 2 %. Never raises: the report explains the usual slips.
    """
    wasted = leave * (1 - after)
    right = 1 / (1 - wasted)
    return check_number(
        "What hanging up saves",
        answer,
        right,
        tried=f"your answer, where {leave:.0%} leave after {after:.0%} of their answer",
        expected="requests a second with abort, divided by requests a second without",
        hint="Work out the tokens that the mean request costs with abort, as a part of its whole answer.",
        slips=[
            (
                1 + wasted,
                "You added the saved share. A request that costs x of what it did fits in 1 / x times.",
            ),
            (
                wasted,
                "That is the share of tokens computed for nobody. How many more requests fit without it?",
            ),
            (
                1 - wasted,
                "That is what a request costs with abort. Turn it over: how many fit in the same time?",
            ),
            (1 / (1 - leave), f"Those who leave do not cost nothing: they cost {after:.0%} of an answer."),
            (1 / (1 - leave * after), "You took away the part that was read. The part behind it is saved."),
            (right - 1, "That is how much more, as a share of before. The factor is new divided by old."),
            (1 / (1 - (1 - after)), f"Only {leave:.0%} of the callers leave; the others read to the end."),
        ],
        tolerance=0.02,
    )
