"""Server-sent events from bytes that arrive in any pieces (WHATWG HTML, 9.2.6). Standard library only."""

from __future__ import annotations

BOM = b"\xef\xbb\xbf"
MAX_EVENT = 4 << 20  # bytes


class EventTooLongError(ValueError):
    """An event grew past ``MAX_EVENT`` bytes without its end."""


class EventParser:
    """Turns bytes into the data of each event, whatever the pieces they come in.

    Lines end in LF, CR or CRLF, and nowhere else: U+2028 and its like are text. Several ``data`` lines
    of one event are joined by LF. Comments are counted in ``comments``; ``event``, ``id`` and ``retry``
    are skipped, as OpenAI's format puts everything in the data.
    """

    def __init__(self) -> None:
        self.comments = 0
        self._rest = b""  # from the last blank line on, its line ends all LF
        self._after_cr = False
        self._at_start = True

    def feed(self, data: bytes) -> list[str]:
        """The data of every event whose end is in ``data``. Raises ``EventTooLongError``."""
        if self._after_cr and data:
            self._after_cr = False
            if data[0] == 10:  # the other half of a CRLF
                data = data[1:]
        if b"\r" in data:
            self._after_cr = data[-1] == 13
            data = data.replace(b"\r\n", b"\n").replace(b"\r", b"\n")
        *blocks, rest = (self._rest + data).split(b"\n\n")
        if len(rest) > MAX_EVENT:
            raise EventTooLongError(f"an event of more than {MAX_EVENT >> 20} MiB")
        self._rest = rest
        found = []
        for block in blocks:
            if block[:6] == b"data: " and b"\n" not in block:  # nearly every event
                self._at_start = False
                found.append(block[6:].decode("utf-8", "replace"))
            elif (event := self._read(block)) is not None:
                found.append(event)
        return found

    def close(self) -> list[str]:
        """The data of an event that the end of the stream left without its blank line."""
        block, self._rest = self._rest, b""
        event = self._read(block)
        return [] if event is None else [event]

    def _read(self, block: bytes) -> str | None:
        if self._at_start and block:
            self._at_start = False
            block = block.removeprefix(BOM)
        lines = []
        for line in block.split(b"\n"):
            name, _, value = line.partition(b":")
            if name == b"data":
                lines.append(value[1:] if value[:1] == b" " else value)
            elif not name and line:
                self.comments += 1
        return b"\n".join(lines).decode("utf-8", "replace") if lines else None
