"""The checks of chapter 4: right code of several styles passes, and each usual slip is explained."""

from __future__ import annotations

import codecs
import re
from pathlib import Path
from typing import ClassVar

import nbformat
import pytest

from servelib.exercises.ch04 import check_abort_gain, check_detokenizer, check_stops
from servelib.text.detokenizer import IncrementalDetokenizer
from servelib.text.stops import StopMatcher

# ---------------------------------------------------------------- detokenisers


class OwnBytes:
    """The chapter's solution: holds bytes, and asks the decoder how far it came."""

    def __init__(self, tokenizer):
        self.tokenizer = tokenizer
        self.held = b""

    def push(self, ids):
        self.held += b"".join(self.tokenizer.token_bytes(i) for i in ids)
        ready = len(self.held) - self.unfinished()
        text, self.held = self.held[:ready].decode("utf-8", errors="replace"), self.held[ready:]
        return text

    def finish(self):
        text, self.held = self.held.decode("utf-8", errors="replace"), b""
        return text

    def unfinished(self):
        for size in (1, 2, 3):
            tail = self.held[-size:]
            if len(tail) < size:
                return 0
            try:
                tail.decode()
            except UnicodeDecodeError as error:
                if error.start == 0 and error.end == len(tail) and "unexpected end" in error.reason:
                    return size
        return 0


class Incremental:
    """The standard library's decoder, as the package does it."""

    def __init__(self, tokenizer):
        self.spell = tokenizer.token_bytes
        self.decoder = codecs.getincrementaldecoder("utf-8")("replace")

    def push(self, ids):
        return self.decoder.decode(b"".join(map(self.spell, ids)))

    def finish(self):
        return self.decoder.decode(b"", True)


class AllAgain:
    """Decodes the whole answer at each push and gives out what is new; slow, and right."""

    def __init__(self, tokenizer):
        self.tokenizer, self.raw, self.sent = tokenizer, b"", 0

    def push(self, ids):
        self.raw += b"".join(map(self.tokenizer.token_bytes, ids))
        return self.new(codecs.getincrementaldecoder("utf-8")("replace").decode(self.raw))

    def finish(self):
        return self.new(self.raw.decode("utf-8", "replace"))

    def new(self, text):
        out, self.sent = text[self.sent :], max(self.sent, len(text))
        return out


@pytest.mark.parametrize("make", [IncrementalDetokenizer, OwnBytes, Incremental, AllAgain])
def test_right_detokenisers_of_several_styles_pass(make):
    assert len(check_detokenizer(make).require().results) == 11


class PerToken(OwnBytes):
    """Each push decoded alone."""

    def push(self, ids):
        return b"".join(map(self.tokenizer.token_bytes, ids)).decode("utf-8", "replace")


class Ignoring(OwnBytes):
    def push(self, ids):
        return b"".join(map(self.tokenizer.token_bytes, ids)).decode("utf-8", "ignore")


class Strict(OwnBytes):
    """Waits until all that is held decodes; one bad byte ends the stream."""

    def push(self, ids):
        self.held += b"".join(map(self.tokenizer.token_bytes, ids))
        try:
            text, self.held = self.held.decode(), b""
        except UnicodeDecodeError:
            return ""
        return text


class StopsAtBad(OwnBytes):
    """Gives out what is before an error, and takes every error for a character that is not whole yet."""

    def push(self, ids):
        self.held += b"".join(map(self.tokenizer.token_bytes, ids))
        try:
            text, self.held = self.held.decode(), b""
        except UnicodeDecodeError as error:
            text, self.held = self.held[: error.start].decode(), self.held[error.start :]
        return text


class ForgetsTheEnd(OwnBytes):
    def finish(self):
        return ""


class EndsTwice(OwnBytes):
    def finish(self):
        return self.held.decode("utf-8", "replace")


class LooksForReplacement(AllAgain):
    """Holds while the text ends in U+FFFD, as several libraries do."""

    def push(self, ids):
        self.raw += b"".join(map(self.tokenizer.token_bytes, ids))
        return self.new(self.raw.decode("utf-8", "replace").rstrip("\ufffd"))


class Resends(OwnBytes):
    def __init__(self, tokenizer):
        super().__init__(tokenizer)
        self.raw = b""

    def push(self, ids):
        self.raw += b"".join(map(self.tokenizer.token_bytes, ids))
        return self.raw.decode("utf-8", "ignore")


class Shared(OwnBytes):
    """What is held belongs to the class."""

    held = b""

    def __init__(self, tokenizer):
        self.tokenizer = tokenizer
        type(self).held = b""

    def push(self, ids):
        cls = type(self)
        cls.held += b"".join(map(self.tokenizer.token_bytes, ids))
        ready = len(cls.held) - self.unfinished()
        text, cls.held = cls.held[:ready].decode("utf-8", "replace"), cls.held[ready:]
        return text


class SpellsControl(OwnBytes):
    def push(self, ids):
        text = ""
        for i in ids:
            text += self.tokenizer.token_text(i) if i in (256, 257, 258, 259) else super().push([i])
        return text


class TokensNotBytes(OwnBytes):
    """Holds a token until it decodes alone or with the one before."""

    def push(self, ids):
        out = ""
        for i in ids:
            self.held += self.tokenizer.token_bytes(i)
            try:
                out += self.held.decode()
                self.held = b""
            except UnicodeDecodeError:
                if len(self.held) > 4:
                    out += self.held.decode("utf-8", "replace")
                    self.held = b""
        return out


class OneForMany(OwnBytes):
    def push(self, ids):
        return re.sub("\ufffd+", "\ufffd", super().push(ids))


class WaitsForSpace(OwnBytes):
    def push(self, ids):
        self.held += b"".join(map(self.tokenizer.token_bytes, ids))
        head, space, tail = self.held.rpartition(b" ")
        self.held = tail
        return (head + space).decode("utf-8", "replace")


class Latin(OwnBytes):
    def push(self, ids):
        return b"".join(map(self.tokenizer.token_bytes, ids)).decode("latin-1")


class DropsBad(OwnBytes):
    def push(self, ids):
        return super().push(ids).replace("\ufffd", "")


class GivesNone(OwnBytes):
    def push(self, ids):
        return super().push(ids) or None


class GivesBytes(OwnBytes):
    def push(self, ids):
        return super().push(ids).encode()


@pytest.mark.parametrize(
    ("make", "check", "hint"),
    [
        (PerToken, "half a character is held back", "before the character is whole"),
        (Ignoring, "half a character is held back", "errors='ignore'"),
        (Strict, "every split in two", "You hold back text that is whole"),
        (StopsAtBad, "a byte that is no text", "one stops the stream"),
        (ForgetsTheEnd, "a byte that is no text|a character cut short", "finish() says that no more comes"),
        (EndsTwice, "a character cut short", "a caller gets it twice"),
        (LooksForReplacement, "a U+FFFD that the model", "Look at the bytes"),
        (Resends, "plain letters", "Only what is new may go out"),
        (Shared, "two streams", "make it in __init__"),
        (SpellsControl, "control tokens", "use token_bytes()"),
        (TokensNotBytes, "a byte that is no text", "one stops the stream"),
        (OneForMany, "200 random byte strings", "that is what must come out"),
        (WaitsForSpace, "plain letters", "goes out with the push that brings it"),
        (Latin, "half a character", "never a character of its own"),
        (DropsBad, "a byte that is no text", "You drop bad bytes without a trace"),
        (GivesNone, "half a character", "never None"),
        (GivesBytes, "plain letters", "decode them"),
    ],
)
def test_each_wrong_detokeniser_is_explained(make, check, hint):
    first = check_detokenizer(make).failures[0]
    assert any(first.name.startswith(name) for name in check.split("|"))
    assert hint in first.mistake.hint
    assert first.mistake.got


# ---------------------------------------------------------------- stop strings


class OwnStops:
    """The chapter's solution."""

    def __init__(self, stops):
        self.stops, self.held, self.matched = stops, "", None

    def push(self, text):
        if self.matched is not None:
            return ""
        text = self.held + text
        for at in range(len(text)):
            whole = [stop for stop in self.stops if text.startswith(stop, at)]
            if whole:
                self.matched, self.held = whole[0], ""
                return text[:at]
            if any(stop.startswith(text[at:]) for stop in self.stops):
                self.held = text[at:]
                return text[:at]
        self.held = ""
        return text

    def finish(self):
        if self.matched is not None:
            return ""
        text, self.held = self.held, ""
        for at in range(len(text)):
            for stop in self.stops:
                if text.startswith(stop, at):
                    self.matched = stop
                    return text[:at]
        return text


class LetterByLetter(OwnStops):
    """One letter at a time, whatever the piece."""

    def push(self, text):
        return "".join(super(LetterByLetter, self).push(letter) for letter in text)


@pytest.mark.parametrize("make", [StopMatcher, OwnStops, LetterByLetter])
def test_right_matchers_of_several_styles_pass(make):
    assert len(check_stops(make).require().results) == 12


class PieceAlone(OwnStops):
    def push(self, text):
        for stop in self.stops:
            if self.matched is None and stop in text:
                self.matched = stop
                return text[: text.find(stop)]
        return "" if self.matched else text


class SendsParts(OwnStops):
    """Sees the stop string across borders, but has sent its first part by then."""

    def __init__(self, stops):
        super().__init__(stops)
        self.seen = ""

    def push(self, text):
        if self.matched is not None:
            return ""
        before, self.seen = len(self.seen), self.seen + text
        for stop in self.stops:
            at = self.seen.find(stop)
            if at >= 0:
                self.matched = stop
                return self.seen[before : max(at, before)]
        return text

    def finish(self):
        return ""


class HoldsAlways(OwnStops):
    """Keeps the last n - 1 characters, whatever they are."""

    def push(self, text):
        if self.matched is not None:
            return ""
        text = self.held + text
        found = [(text.find(stop), stop) for stop in self.stops if stop in text]
        keep = max(map(len, self.stops), default=1) - 1
        if found and min(found)[0] + keep < len(text):
            self.held = ""
            at, self.matched = min(found)
            return text[:at]
        cut = max(0, len(text) - keep)
        self.held = text[cut:]
        return text[:cut]


class NoSecondLook(OwnStops):
    """On a mismatch all that was held goes out, and the search begins anew behind it."""

    def push(self, text):
        out = ""
        for letter in text:
            if self.matched is not None:
                break
            text = self.held + letter
            if text in self.stops:
                self.matched, self.held = text, ""
            elif any(stop.startswith(text) for stop in self.stops):
                self.held = text
            elif any(stop.startswith(letter) for stop in self.stops) and self.held:
                out, self.held = out + self.held, letter
            else:
                out, self.held = out + text, ""
        return out


class LosesFalseStart(OwnStops):
    def push(self, text):
        held, self.held = self.held, ""
        out = super().push(held + text)
        return out.removeprefix(held) if self.matched is None and out != held else out


class Doubles(OwnStops):
    """Gives out what it holds at the end, and keeps it."""

    def finish(self):
        held = self.held
        out, self.held = super().finish(), held
        return out


class FirstInTheList(OwnStops):
    def push(self, text):
        for stop in self.stops:
            if self.matched is None and stop in self.held + text:
                text, self.held, self.matched = self.held + text, "", stop
                return text[: text.find(stop)]
        return super().push(text)


class FirstToComplete(OwnStops):
    def push(self, text):
        if self.matched is not None:
            return ""
        text = self.held + text
        found = [(text.find(stop), stop) for stop in self.stops if stop in text]
        if found:
            at, self.matched = min(found)
            self.held = ""
            return text[:at]
        self.held = ""
        return OwnStops.push(self, text)


class Includes(OwnStops):
    def push(self, text):
        before = self.matched
        out = super().push(text)
        return out + self.matched if before is None and self.matched else out


class Pattern(OwnStops):
    """Takes a stop string for a regular expression."""

    def push(self, text):
        for stop in self.stops:
            found = re.search(stop, self.held + text) if "." in stop and len(stop) > 1 else None
            if found and self.matched is None:
                text, self.held, self.matched = self.held + text, "", stop
                return text[: found.start()]
        return super().push(text)


class GoesOn(OwnStops):
    def push(self, text):
        return text if self.matched is not None else super().push(text)


class ForgetsHeld(OwnStops):
    def finish(self):
        return ""


class NoSearchAtTheEnd(OwnStops):
    def finish(self):
        text, self.held = self.held, ""
        return text


class SharedStops(OwnStops):
    """What is held belongs to the class."""

    box: ClassVar = [""]
    held = property(lambda self: self.box[0], lambda self, value: self.box.__setitem__(0, value))


class NeverSays(OwnStops):
    matched = property(lambda self: None, lambda self, value: None)


class GivesPair(OwnStops):
    def push(self, text):
        return super().push(text), self.matched


@pytest.mark.parametrize(
    ("make", "check", "hint"),
    [
        (PieceAlone, "every border", "a border may run through the string"),
        (SendsParts, "every border", "it has gone out"),
        (HoldsAlways, "nothing is held back", "Hold only an end of the text"),
        (NoSecondLook, "a start inside a false start", "look again from its second character on"),
        (LosesFalseStart, "a false start", "it goes out before the new piece, and only once"),
        (Doubles, "finish()", "Held text goes out once"),
        (FirstInTheList, "of several stop strings", "not the order of the list"),
        (FirstToComplete, "of several stop strings", "may still complete, and then it wins"),
        (Includes, "a stop string inside one piece", "must not go out"),
        (Pattern, "a stop string is text", "str.find"),
        (GoesOn, "after the match", "the text is over"),
        (ForgetsHeld, "every border|a false start", "Text is lost that was no stop string"),
        (NoSearchAtTheEnd, "finish()", "Search it before you give it out"),
        (SharedStops, "two streams", "make it in __init__"),
        (NeverSays, "a stop string inside one piece", "Set self.matched"),
        (GivesPair, "without stop strings", "what was matched stands in self.matched"),
    ],
)
def test_each_wrong_matcher_is_explained(make, check, hint):
    first = check_stops(make).failures[0]
    assert any(first.name.startswith(name) for name in check.split("|")), first.name
    assert any(words in first.mistake.hint for words in hint.split("|")), str(check_stops(make))


def test_an_empty_skeleton_is_not_taken_for_an_error():
    class Empty:
        def __init__(self, given):
            pass

        def push(self, given):
            raise NotImplementedError

    for check in (check_detokenizer, check_stops):
        assert "Nothing is written there yet" in check(Empty).failures[0].mistake.hint
        assert "Pass the class itself" in check(lambda given: None).failures[0].mistake.hint


# ---------------------------------------------------------------- a number


def test_the_gain_of_an_abort():
    assert check_abort_gain(1.6, leave=0.5, after=0.25)
    assert check_abort_gain(1 / 0.7, leave=0.4, after=0.25)


@pytest.mark.parametrize(
    ("answer", "hint"),
    [
        (1.375, "You added"),
        (0.6, "how much more"),
        (0.375, "share of tokens computed for nobody"),
        (0.625, "Turn it over"),
        (2, "do not cost nothing"),
        (1 / 0.875, "The part behind it is saved"),
        (4, "Only 50% of the callers leave"),
        (None, "Put your number"),
        (17, "Work out the tokens"),
    ],
)
def test_each_slip_of_the_gain_has_its_hint(answer, hint):
    (failure,) = check_abort_gain(answer, leave=0.5, after=0.25).failures
    assert hint in failure.mistake.hint


# ---------------------------------------------------------------- the chapter


def test_the_folded_solutions_of_the_chapter_pass():
    path = Path(__file__).parents[2] / "notebooks" / "ch04_text_in_text_out.ipynb"
    prose = "\n".join(cell.source for cell in nbformat.read(path, 4).cells if cell.cell_type == "markdown")
    written: dict = {}
    for block in re.findall(r"<details>.*?```python\n(.*?)```", prose, re.S):
        exec(block, written)
    check_detokenizer(written["MyDetokenizer"]).require()
    check_stops(written["MyMatcher"]).require()
