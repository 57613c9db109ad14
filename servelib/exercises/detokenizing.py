"""The checks of an incremental detokeniser: what may go out, when, and what must never."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable
from functools import partial
from typing import Any

from servelib.exercises.check import Check, Mistake
from servelib.text.bpe import BytePairs, train
from servelib.text.detokenizer import IncrementalDetokenizer
from servelib.text.tokenizer import Tokenizer

MULTILINGUAL = "Grüße, 世界! नमस्ते e\u0301 ไทย 👩‍👩‍👧‍👦 𝔘"
"""Characters of one to four bytes, a combining mark, an emoji of seven code points."""

MakeDetokenizer = Callable[[Tokenizer], Any]  # the reader's class: what it gives may be anything yet

BYTES = Tokenizer()
"""A token a byte."""


def detokenizer_checks(make: MakeDetokenizer) -> list[Check]:
    """All checks, each on new detokenisers."""
    checks: list[tuple[str, Callable[[MakeDetokenizer], None]]] = [
        ("plain letters go out at once", _letters),
        ("half a character is held back until it is whole", _held_back),
        ("every split in two of a text in many scripts", _every_split),
        ("byte by byte, each character goes out when it is whole", _byte_by_byte),
        ("tokens that end inside a character", _merged_tokens),
        ("control tokens print nothing", _specials),
        ("a byte that is no text becomes U+FFFD, and the text around it stays", _invalid),
        ("a U+FFFD that the model really wrote goes out like any character", _real_replacement),
        ("a character cut short comes out once, in finish()", _cut_short),
        ("two streams do not share anything", _two_streams),
        ("200 random byte strings in random pieces equal decoding at once", _random),
    ]
    return [Check(name, partial(run, make)) for name, run in checks]


class _Stream:
    """The reader's detokeniser, fed and watched."""

    def __init__(self, make: MakeDetokenizer, tokenizer: Tokenizer = BYTES) -> None:
        self._theirs = make(tokenizer)
        if self._theirs is None:
            raise Mistake("making your detokeniser", "an object", "None", "Pass the class itself.")

    def push(self, ids: Iterable[int], tried: str) -> str:
        return _text(self._theirs.push(tuple(ids)), f"{tried}, push()")

    def finish(self, tried: str) -> str:
        return _text(self._theirs.finish(), f"{tried}, finish()")

    def whole(self, pushes: Iterable[Iterable[int]], tried: str) -> str:
        return "".join([*(self.push(ids, tried) for ids in pushes), self.finish(tried)])


def _text(value: Any, tried: str) -> str:
    if isinstance(value, str):
        return value
    hint = "Return '' when nothing is complete yet, never None."
    if isinstance(value, bytes):
        hint = "These are bytes. Callers get text: decode them."
    if isinstance(value, list | tuple):
        hint = "Join the pieces to one string before you return them."
    raise Mistake(tried, "a string", repr(value), hint)


def _letters(make: MakeDetokenizer) -> None:
    stream, tried = _Stream(make), "the tokens of 'serve', one at a time"
    for letter in b"serve":
        got = stream.push([letter], tried)
        if got != chr(letter):
            hint = "A byte below 128 is a whole character: it goes out with the push that brings it."
            if len(got) > 1:
                hint = "You give out what was sent before. Only what is new may go out."
            raise Mistake(tried, repr(chr(letter)), repr(got), hint)
    hint = "All of it went out before. finish() gives what is left, and here nothing is."
    _same(stream.finish(tried), "", f"{tried}, then finish()", hint)


def _held_back(make: MakeDetokenizer) -> None:
    for character in "é世🙂":
        raw = character.encode()
        stream, tried = _Stream(make), f"the {len(raw)} bytes of {character!r}, one token each"
        for number, byte in enumerate(raw, start=1):
            got = stream.push([byte], tried)
            expected = character if number == len(raw) else ""
            if got != expected:
                raise Mistake(f"{tried}, push {number}", repr(expected), repr(got), _why_half(got))


def _why_half(got: str) -> str:
    if "\ufffd" in got:
        return (
            "You decode before the character is whole, and the decoder puts U+FFFD in place of its bytes. "
            "Keep the bytes of an unfinished character, and decode them with the next ones."
        )
    if not got:
        return (
            "Nothing came out though the character is whole. Are its first bytes thrown away "
            "(errors='ignore'), or do you wait for one more token to be sure? The first byte says how long "
            "the character is."
        )
    return "Bytes were taken for characters: one byte of UTF-8 above 127 is never a character of its own."


def _every_split(make: MakeDetokenizer) -> None:
    raw = MULTILINGUAL.encode()
    for cut in range(len(raw) + 1):
        stream = _Stream(make)
        tried = f"a text of {len(raw)} bytes, cut after byte {cut}"
        first = stream.push(raw[:cut], tried)
        whole = raw[:cut].decode("utf-8", errors="ignore")
        if first != whole:
            hint = "Out may go the characters that are whole, all of them, and nothing else."
            if "\ufffd" in first:
                hint = _why_half(first)
            elif whole.startswith(first):
                hint = (
                    "You hold back text that is whole. Only the last, unfinished character may wait; joined "
                    "emoji and accents are code points of their own, and each goes out when it is whole."
                )
            at_end = repr(whole[-12:]) + " at the end"
            raise Mistake(f"{tried}, the first push", at_end, repr(first[-12:]), hint)
        second = stream.push(raw[cut:], tried) + stream.finish(tried)
        _same(first + second, MULTILINGUAL, tried, "The second part begins with the bytes you held back.")


def _byte_by_byte(make: MakeDetokenizer) -> None:
    stream, oracle = _Stream(make), IncrementalDetokenizer(BYTES)
    tried = "the same text, byte by byte"
    for number, byte in enumerate(MULTILINGUAL.encode(), start=1):
        got, expected = stream.push([byte], tried), oracle.push([byte])
        if got != expected:
            hint = _why_half(got) if len(got) < 2 else "You give out more than is new, or held whole text."
            raise Mistake(f"{tried}, byte {number}", repr(expected), repr(got), hint)


def _merged_tokens(make: MakeDetokenizer) -> None:
    tokenizer = Tokenizer(BytePairs(train("世界 世间 世世 été éte " * 4, 12)).encoding())
    text = "été 世界 世间"
    ids = tokenizer.encode(text)
    spelled = [tokenizer.token_bytes(token_id) for token_id in ids]
    tried = f"tokens of several bytes: {spelled}"
    hint = "A token may end one character and begin the next: keep bytes, not tokens."
    _same(_Stream(make, tokenizer).whole([[i] for i in ids], tried), text, tried, hint)
    _same(_Stream(make, tokenizer).whole([ids], tried), text, f"{tried}, all in one push", hint)


def _specials(make: MakeDetokenizer) -> None:
    tried = "'a', the end-of-turn token 259, the two bytes of 'é' with token 258 between them, 'b'"
    got = _Stream(make).whole([[97], [259], [0xC3], [258], [0xA9], [98]], tried)
    hint = "tokenizer.token_bytes(id) gives b'' for a control token: then there is nothing to add."
    if "<|" in got:
        hint = "You spell the control tokens. token_text() is for people who debug; use token_bytes()."
    _same(got, "aéb", tried, hint)


def _invalid(make: MakeDetokenizer) -> None:
    for raw, expected in (
        (b"ab\xffcd", "ab\ufffdcd"),
        (b"a\xe4\xb8b", "a\ufffdb"),
        (b"\x80ok", "\ufffdok"),
    ):
        tried = f"the bytes {raw!r}, one token each"
        stream = _Stream(make)
        at_once = "".join(stream.push([byte], tried) for byte in raw)
        got = at_once + stream.finish(tried)
        hint = "Decode with errors='replace': the bad bytes become U+FFFD, and decoding goes on behind them."
        if got == expected.replace("\ufffd", ""):
            hint = "You drop bad bytes without a trace. The reader should see that something was there."
        elif len(got) < len(expected):
            hint = "Text is lost: bytes that can no longer become a character are still held back. " + hint
        _same(got, expected, tried, hint)
        hint = "Bytes that can no longer become a character are held until finish(): one stops the stream."
        _same(at_once, expected, f"{tried}, before finish()", hint)


def _real_replacement(make: MakeDetokenizer) -> None:
    stream, tried = _Stream(make), "the three bytes of a real U+FFFD in one push"
    hint = (
        "You look for U+FFFD in the decoded text to learn whether a character is unfinished. It may be "
        "there because the model wrote it. Look at the bytes."
    )
    _same(stream.push("\ufffd".encode(), tried), "\ufffd", tried, hint)


def _cut_short(make: MakeDetokenizer) -> None:
    stream, tried = _Stream(make), "'a' and the first two bytes of '世', and then the token limit"
    got = stream.push([97, *"世".encode()[:2]], tried)
    if got != "a":
        raise Mistake(tried, repr("a"), repr(got), _why_half(got))
    hint = "finish() says that no more comes: what is held back goes out as one U+FFFD."
    _same(stream.finish(tried), "\ufffd", f"{tried}, finish()", hint)
    hint = "Empty what you held when you give it out, or a caller gets it twice."
    _same(stream.finish(tried), "", f"{tried}, finish() once more", hint)


def _two_streams(make: MakeDetokenizer) -> None:
    tried = "two detokenisers in turn, one streaming 'é', the other '世'"
    one, other = _Stream(make), _Stream(make)
    hint = "What is held back belongs to one stream: make it in __init__, not in the body of the class."
    got = one.push([0xC3], tried) + other.push([0xE4, 0xB8], tried) + one.push([0xA9], tried)
    _same(got, "é", tried, hint)
    _same(other.push([0x96], tried), "世", tried, hint)


def _random(make: MakeDetokenizer) -> None:
    rng = random.Random(4)
    for _ in range(200):
        raw = _noise(rng)
        pushes = _pieces(rng, raw)
        tried = f"the pushes {pushes}"
        hint = "All of it together, bytes.decode('utf-8', errors='replace'): that is what must come out."
        _same(_Stream(make).whole(pushes, tried), raw.decode("utf-8", errors="replace"), tried, hint)


def _noise(rng: random.Random) -> bytes:
    parts = [
        rng.choice(MULTILINGUAL).encode()[: rng.randint(1, 4)] if rng.random() < 0.7 else rng.randbytes(1)
        for _ in range(rng.randint(0, 12))
    ]
    return b"".join(parts)


def _pieces(rng: random.Random, raw: bytes) -> list[list[int]]:
    borders = sorted(rng.randint(0, len(raw)) for _ in range(4))
    return [list(raw[a:b]) for a, b in zip([0, *borders], [*borders, len(raw)], strict=True)]


def _same(got: str, expected: str, tried: str, hint: str) -> None:
    if got != expected:
        raise Mistake(tried, *_around(expected, got), hint)


def _around(expected: str, got: str) -> tuple[str, str]:
    """Both texts, from a little before where they part."""
    apart = (i for i, (a, b) in enumerate(zip(expected, got, strict=False)) if a != b)
    at = next(apart, min(len(expected), len(got)))
    start = max(0, at - 8)
    lead = f"... from character {start}: " if start else ""
    return lead + repr(expected[start : start + 40]), lead + repr(got[start : start + 40])
