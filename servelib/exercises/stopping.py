"""The checks of stop strings in a stream: cut exactly, nothing of one sent, nothing else lost."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

from servelib.exercises.check import Check, Mistake
from servelib.text.stops import StopMatcher

MakeMatcher = Callable[[Sequence[str]], Any]  # the reader's class: what it gives may be anything yet

AGAIN = (
    "After a mismatch the text that you held may still contain a later beginning of the stop string: "
    "look again from its second character on, and do not start from nothing."
)


def stop_checks(make: MakeMatcher) -> list[Check]:
    """All checks, each on new matchers."""
    checks: list[tuple[str, Callable[[MakeMatcher], None]]] = [
        ("without stop strings text goes through at once", _no_stops),
        ("a stop string inside one piece is cut exactly", _inside),
        ("after the match nothing more comes out", _nothing_after),
        ("every border through a stop string", _every_border),
        ("a false start is delivered, once", _false_start),
        ("a start inside a false start is found", _start_within),
        ("of several stop strings the one that begins first wins", _earliest),
        ("finish() gives what is held back, cut if a shorter stop string is in it", _finish),
        ("a stop string is text, not a pattern", _literal),
        ("two streams do not share anything", _two_streams),
        ("300 random texts in random pieces are cut where the whole text is cut", _random),
        ("nothing is held back that cannot become a stop string", _no_longer),
    ]
    return [Check(name, partial(run, make)) for name, run in checks]


class _Stream:
    """The reader's matcher, fed and watched."""

    def __init__(self, make: MakeMatcher, stops: Sequence[str]) -> None:
        self._theirs = make(tuple(stops))
        if self._theirs is None:
            raise Mistake("making your matcher", "an object", "None", "Pass the class itself.")

    def push(self, piece: str, tried: str) -> str:
        return _text(self._theirs.push(piece), f"{tried}, push({piece!r})")

    def finish(self, tried: str) -> str:
        return _text(self._theirs.finish(), f"{tried}, finish()")

    @property
    def matched(self) -> Any:
        return self._theirs.matched


def _text(value: Any, tried: str) -> str:
    if isinstance(value, str):
        return value
    hint = "Return '' when nothing can go out, never None."
    if isinstance(value, tuple | bool):
        hint = "Return the text only; what was matched stands in self.matched."
    raise Mistake(tried, "a string", repr(value), hint)


def _play(make: MakeMatcher, stops: Sequence[str], pieces: Sequence[str], hint: str) -> None:
    """Feed ``pieces``; the joined text and the match must be those of the definition."""
    stream = _Stream(make, stops)
    tried = f"stop={list(stops)}, pieces {list(pieces)}"
    sent = "".join([*(stream.push(piece, tried) for piece in pieces), stream.finish(tried)])
    expected, matches = cut(stops, "".join(pieces))
    if sent != expected:
        raise Mistake(tried, repr(expected), repr(sent), _why(sent, expected, matches, hint))
    allowed: list[str | None] = [*matches] or [None]
    if stream.matched not in allowed:
        why = "Set self.matched to the stop string that ended the text, and leave it None otherwise."
        wanted = " or ".join(map(repr, allowed))
        raise Mistake(f"{tried}, matched", wanted, repr(stream.matched), why)


def cut(stops: Sequence[str], text: str) -> tuple[str, list[str]]:
    """The definition: the text before the first place where stop strings begin, and those that do."""
    at = min((text.find(stop) for stop in stops if stop in text), default=len(text))
    return text[:at], [stop for stop in stops if text.startswith(stop, at)]


def _why(sent: str, expected: str, matches: Sequence[str], hint: str) -> str:
    if not matches:
        if len(sent) < len(expected):
            return f"Text is lost that was no stop string. {hint}"
        return f"Text came out twice, or changed. {hint}"
    extra = sent.removeprefix(expected)
    if extra in matches:
        return f"The stop string itself must not go out. {hint}"
    if sent.startswith(expected) and any(stop.startswith(extra) for stop in matches):
        return (
            f"{extra!r} is the beginning of the stop string, and it has gone out. What could still become a "
            f"stop string must wait until it is known. {hint}"
        )
    return f"The text must end before {matches[0]!r}. {hint}"


def _no_stops(make: MakeMatcher) -> None:
    stream, tried = _Stream(make, []), "stop=[], pieces ['a', '', 'bc']"
    for piece in ("a", "", "bc"):
        got = stream.push(piece, tried)
        if got != piece:
            raise Mistake(tried, repr(piece), repr(got), "With nothing to look for, nothing must wait.")
    rest = stream.finish(tried)
    if rest:
        raise Mistake(f"{tried}, finish()", "''", repr(rest), "All of it went out before.")


def _inside(make: MakeMatcher) -> None:
    hint = "Give out the text before the stop string, and set self.matched."
    _play(make, ["<stop>"], ["one <stop> two"], hint)
    _play(make, ["<stop>"], ["<stop>"], hint)


def _every_border(make: MakeMatcher) -> None:
    text = "oné <stop>two"
    hint = "Search in what you held back and the new piece together: a border may run through the string."
    for at in range(len(text) + 1):
        _play(make, ["<stop>"], [text[:at], text[at:]], hint)
    _play(make, ["<stop>"], list(text), hint)


def _nothing_after(make: MakeMatcher) -> None:
    stream, tried = _Stream(make, ["."]), "stop=['.'], pieces ['a.b', 'c.d']"
    first, second = stream.push("a.b", tried), stream.push("c.d", tried)
    if (first, second, stream.finish(tried)) != ("a", "", ""):
        hint = "After the match the text is over: push() and finish() give '' from then on."
        raise Mistake(tried, "'a', then ''", f"{first!r}, then {second!r}", hint)


def _false_start(make: MakeMatcher) -> None:
    hint = "What you held back turned out to be text: it goes out before the new piece, and only once."
    for pieces in (["a#", "#", "b"], ["#", "x", "#", "y"], ["##", "b", "##"], ["a##b##c"]):
        _play(make, ["###"], pieces, hint)


def _start_within(make: MakeMatcher) -> None:
    _play(make, ["aab"], list("xaaab"), AGAIN)
    _play(make, ["\n\nUser:"], ["ok\n", "\n", "\n", "Us", "er: hi"], AGAIN)


def _earliest(make: MakeMatcher) -> None:
    order = "The lowest place in the text decides, not the order of the list."
    _play(make, ["two", "one"], ["say one and two"], order)
    wait = (
        "A stop string that began earlier may still complete, and then it wins: wait for it before you act "
        "on one that begins later."
    )
    _play(make, ["bc", "abcd"], list("xabcd"), wait)
    _play(make, ["bc", "abcd"], list("xabce"), f"{wait} Here it does not complete. {AGAIN}")


def _finish(make: MakeMatcher) -> None:
    hint = "When no more text comes, nothing that is held can become a stop string any more: give it out."
    _play(make, ["###"], ["a##"], hint)
    shorter = (
        "What is held at the end may hold a whole, shorter stop string. Search it before you give it out."
    )
    _play(make, ["bc", "abcd"], ["x", "ab", "c"], shorter)
    stream, tried = _Stream(make, ["###"]), "stop=['###'], pieces ['a##'], finish() twice"
    stream.push("a##", tried)
    first, again = stream.finish(tried), stream.finish(tried)
    if (first, again) != ("##", ""):
        raise Mistake(tried, "'##', then ''", f"{first!r}, then {again!r}", "Held text goes out once.")


def _literal(make: MakeMatcher) -> None:
    hint = "In a pattern '.' and '(' have a meaning of their own. Use str.find, or re.escape."
    _play(make, ["a.c"], ["abc a.c"], hint)
    _play(make, ["(", "$"], ["f", "(x)"], hint)


def _two_streams(make: MakeMatcher) -> None:
    one, other = _Stream(make, ["##"]), _Stream(make, ["##"])
    tried = "two matchers in turn, stop=['##']: 'a#' and 'c' to one, '#b' to the other"
    first, second = one.push("a#", tried), other.push("#b", tried)
    got = first + one.push("c", tried) + one.finish(tried), second + other.finish(tried)
    if got != ("a#c", "#b"):
        hint = "What is held back belongs to one stream: make it in __init__, not in the body of the class."
        raise Mistake(tried, "'a#c' and '#b'", " and ".join(map(repr, got)), hint)


def _random(make: MakeMatcher) -> None:
    rng = random.Random(4)
    for _ in range(300):
        text = "".join(rng.choices("ab#", k=rng.randint(0, 14)))
        stops = ["".join(rng.choices("ab#", k=rng.randint(1, 4))) for _ in range(rng.randint(1, 3))]
        borders = sorted(rng.randint(0, len(text)) for _ in range(rng.randint(0, 6)))
        pieces = [text[a:b] for a, b in zip([0, *borders], [*borders, len(text)], strict=True)]
        _play(make, stops, pieces, f"The earliest beginning wins, whatever the pieces. {AGAIN}")


def _no_longer(make: MakeMatcher) -> None:
    stops, text = ["\n\nUser:", "###"], "#1 A\nB ## Users: #\n\nUs"
    stream, oracle = _Stream(make, stops), StopMatcher(stops)
    tried = f"stop={stops}, the text {text!r} letter by letter"
    sent, free = "", ""
    for letter in text:
        sent += stream.push(letter, tried)
        free += oracle.push(letter)
        if sent != free:
            hint = (
                "You hold text that can no longer become a stop string, and the reader waits for it. Hold "
                "only an end of the text that is the beginning of a stop string."
            )
            raise Mistake(f"{tried}, after {letter!r}", f"{free!r} has gone out", repr(sent), hint)
