"""Stop strings in streamed text: cut exactly, never send a part of one, never hold back more."""

from __future__ import annotations

from collections.abc import Iterable


class StopMatcher:
    """Passes text through up to the first place where a stop string begins.

    For any split of a text into pieces, the pieces given out join to ``text[:i]``, where ``i`` is the
    lowest index at which any of the stop strings occurs, or to the whole text if none does. Only
    text that could still be the beginning of a stop string is held back. The prompt is never
    searched, because it is never pushed.
    """

    def __init__(self, stops: Iterable[str]) -> None:
        self._stops = tuple(stops)
        if not all(self._stops):
            raise ValueError("stops: got an empty string, must be non-empty: it would match everywhere")
        self._held = ""
        self.matched: str | None = None  # the stop string that ended the text

    def push(self, text: str) -> str:
        """What can be given out now. After a match (``matched`` is set), nothing more."""
        if not self._stops:
            return text
        if self.matched is not None:
            return ""
        text = self._held + text
        found, stop = self._first_match(text)
        open_from = self._first_open(text)
        # A stop string that began earlier may still complete: it would win, so wait for it.
        if stop is not None and found <= open_from:
            self.matched = stop
            self._held = ""
            return text[:found]
        self._held = text[open_from:]
        return text[:open_from]

    def finish(self) -> str:
        """What is held back when no more text comes: a false start is given out, once."""
        if self.matched is not None:
            return ""
        text, self._held = self._held, ""
        found, self.matched = self._first_match(text)
        return text[:found]

    def _first_match(self, text: str) -> tuple[int, str | None]:
        """Where the earliest stop string begins, and which; the longest of those that begin there."""
        matches = [(text.find(stop), -len(stop), stop) for stop in self._stops if stop in text]
        if not matches:
            return len(text), None
        start, _, stop = min(matches)
        return start, stop

    def _first_open(self, text: str) -> int:
        """The lowest index from which all the rest is the beginning of a stop string."""
        longest = max(map(len, self._stops), default=0)
        for start in range(max(0, len(text) - longest + 1), len(text)):
            rest = text[start:]
            if any(stop.startswith(rest) and stop != rest for stop in self._stops):
                return start
        return len(text)
