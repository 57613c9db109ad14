"""A check of one number: right within a tolerance, and the usual slips named."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from servelib.exercises.check import Check, Mistake, Report, run_checks


def check_number(
    title: str,
    answer: Any,
    right: float,
    *,
    tried: str,
    expected: str,
    hint: str,
    slips: Sequence[tuple[float, str]] = (),
    tolerance: float = 0.05,
) -> Report:
    """Compare ``answer`` with ``right``, relative ``tolerance``. Never raises: the report explains.

    ``slips`` are wrong values that people reach, each with the hint for it; ``hint`` is for all others.
    """

    def run() -> None:
        if isinstance(answer, bool) or not isinstance(answer, int | float) or not math.isfinite(answer):
            raise Mistake(tried, expected, repr(answer), "Put your number in place of it.")
        if math.isclose(answer, right, rel_tol=tolerance):
            return
        named = [why for value, why in slips if math.isclose(answer, value, rel_tol=tolerance)]
        raise Mistake(tried, expected, f"{answer:g}", named[0] if named else hint)

    return run_checks(title, [Check(expected, run)])
