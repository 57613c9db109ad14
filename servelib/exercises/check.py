"""Checks that run a reader's code and explain the first failure, without a traceback of ours.

A check is a name and a function that returns quietly or raises ``Mistake``. A chapter's module
builds a list of them; ``run_checks`` runs them all and gives back a ``Report``, which prints in a
terminal, renders in Jupyter, and can be asserted on.
"""

from __future__ import annotations

import html
import signal
import sys
import textwrap
import threading
import traceback
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

_PACKAGE = str(Path(__file__).resolve().parents[1])
_OURS = (_PACKAGE, str(Path(threading.__file__).resolve().parent))  # servelib, the standard library


class Mistake(Exception):  # noqa: N818  (it is the reader's, and not an error of the program)
    """What a check found: what was tried, what should have come, what came, and a way out."""

    def __init__(self, tried: str, expected: str, got: str, hint: str) -> None:
        self.tried, self.expected, self.got, self.hint = tried, expected, got, hint
        super().__init__(f"{tried}: expected {expected}, got {got}. {hint}")


class Endless(BaseException):
    """Stops code that does not end. Not an ``Exception``, so that the reader's code cannot catch it."""


@dataclass(frozen=True, slots=True)
class Check:
    """One thing to prove. ``name`` says what must hold."""

    name: str
    run: Callable[[], None]


@dataclass(frozen=True, slots=True)
class Result:
    """A check and what it found: no mistake means that it passed."""

    name: str
    mistake: Mistake | None = None


@dataclass(frozen=True)
class Report:
    """All results of an exercise. Truthy when everything passed."""

    title: str
    results: tuple[Result, ...]

    @property
    def failures(self) -> tuple[Result, ...]:
        """What did not pass, in order."""
        return tuple(result for result in self.results if result.mistake is not None)

    @property
    def passed(self) -> bool:
        """Whether every check passed."""
        return not self.failures

    def __bool__(self) -> bool:
        return self.passed

    def require(self) -> Report:
        """Return self, or raise ``AssertionError`` with the explanation: for a test or a solution."""
        if not self.passed:
            raise AssertionError("\n" + str(self))
        return self

    @property
    def headline(self) -> str:
        """One line: how many checks pass."""
        total = len(self.results)
        if self.passed:
            return f"{self.title}: all {total} checks pass." if total > 1 else f"{self.title}: correct."
        if total == 1:
            return f"{self.title}: not yet."
        return f"{self.title}: {total - len(self.failures)} of {total} checks pass."

    def _explanation(self) -> list[tuple[str, str]]:
        mistake = self.failures[0].mistake if self.failures else None
        if mistake is None:
            return []
        return [
            ("tried", mistake.tried),
            ("expected", mistake.expected),
            ("got", mistake.got),
            ("hint", mistake.hint),
        ]

    def __str__(self) -> str:
        lines = [self.headline, ""]
        lines += [f"  {'pass' if r.mistake is None else 'FAIL'}  {r.name}" for r in self.results]
        if not self.passed:
            lines += ["", f"The first failure: {self.failures[0].name}"]
            for word, text in self._explanation():
                lines += _hanging(word, text)
        return "\n".join(lines)

    __repr__ = __str__

    def _repr_html_(self) -> str:
        # Colours come from the page, so that it reads on light and dark; words carry the verdict.
        rows = "".join(
            f"<li><b>{'pass' if r.mistake is None else 'FAIL'}</b>&ensp;{html.escape(r.name)}</li>"
            for r in self.results
        )
        out = f"<p><b>{html.escape(self.headline)}</b></p>"
        out += f'<ul style="list-style:none;padding-left:0">{rows}</ul>'
        if not self.passed:
            out += f"<p>The first failure: <b>{html.escape(self.failures[0].name)}</b></p><dl>"
            for word, text in self._explanation():
                out += f'<dt>{word}</dt><dd style="white-space:pre-wrap">{html.escape(text)}</dd>'
            out += "</dl>"
        return f'<div class="servelib-check" role="group" aria-label="Result of the checks">{out}</div>'


def run_checks(title: str, checks: Sequence[Check], *, limit: float = 5.0) -> Report:
    """Run every check, each for ``limit`` seconds at most, and report. Never raises for a reader's error."""
    return Report(title, tuple(Result(check.name, _mistake_in(check, limit)) for check in checks))


def _mistake_in(check: Check, limit: float) -> Mistake | None:
    try:
        with _time_limit(limit):
            check.run()
    except Mistake as mistake:
        return mistake
    except NotImplementedError as error:
        return _raised(error, "Nothing is written there yet. Write it, then run this cell again.")
    except Endless as error:
        return _raised(
            error,
            "Look for a loop whose condition never turns false, or a wait for something that never comes.",
        )
    except Exception as error:
        return _raised(
            error, "Your code raised this. Read the line above: which value is not what you thought?"
        )
    return None


def _raised(error: BaseException, hint: str) -> Mistake:
    what = f"it did not end: {error}" if isinstance(error, Endless) else _named(error)
    return Mistake("running your code", "no exception", what + _readers_line(error), hint)


def _named(error: BaseException) -> str:
    return f"{type(error).__name__}: {error}" if str(error) else type(error).__name__


def _readers_line(error: BaseException) -> str:
    """The last frame that is the reader's own, as text."""
    frames = traceback.extract_tb(error.__traceback__)
    theirs = [frame for frame in frames if not frame.filename.startswith(_OURS)]
    if not theirs:
        return ""
    frame = theirs[-1]
    where = f"\nin {frame.name}, line {frame.lineno} of your code"
    return f"{where}:\n    {frame.line}" if frame.line else where


@contextmanager
def _time_limit(seconds: float) -> Iterator[None]:
    """Raise ``Endless`` in the block after ``seconds``, where the platform has a timer for it."""
    if sys.platform == "win32" or threading.current_thread() is not threading.main_thread():
        yield
        return

    def ring(_signal: int, _frame: object) -> None:
        raise Endless(f"stopped after {seconds:g} s")

    old_handler = signal.signal(signal.SIGALRM, ring)
    old_timer = signal.setitimer(signal.ITIMER_REAL, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, *old_timer)
        signal.signal(signal.SIGALRM, old_handler)


def _hanging(word: str, text: str) -> list[str]:
    """``word`` in a column, ``text`` wrapped beside it; lines of its own are kept."""
    lines = [
        piece
        for line in text.splitlines()
        for piece in textwrap.wrap(line, 84, drop_whitespace=False) or [""]
    ]
    return [f"  {word if i == 0 else '':<10}{line.rstrip()}" for i, line in enumerate(lines)]
