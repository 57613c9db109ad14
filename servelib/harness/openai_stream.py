"""What the chunks of a completions or chat stream mean, and how many tokens each of them brought.

A server says how many tokens it generated (``usage``), and sends text in chunks that may hold one
token or several. ``credit`` brings the two together, see there.
"""

from __future__ import annotations

import enum
import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from servelib.harness.sse import EventParser

DONE = "[DONE]"
REASONING_FIELDS = ("reasoning_content", "reasoning")

MOST_TOKENS = 10_000_000  # of one request: a larger count is no count, and its gaps would fill the memory

CountTokens = Callable[[str], int]
"""How many tokens a text is, for a server that does not say."""


class Kind(enum.Enum):
    """What a chunk brings. Only TEXT, REASONING and TOOL are generated tokens."""

    TEXT = "text"
    REASONING = "reasoning"
    TOOL = "tool"
    ROLE = "role"  # the opening of a chat: who speaks, and nothing said
    EMPTY = "empty"
    USAGE = "usage"
    DONE = "done"
    ERROR = "error"


class StreamError(Exception):
    """The server put an error, or something that is no chunk, inside the stream."""


class Chunk(NamedTuple):
    """One event of a stream, understood."""

    kind: Kind
    text: str = ""  # what was generated: the answer, the reasoning, or a tool call's name and arguments
    finished: bool = False
    completion_tokens: int | None = None  # as ``usage`` has it, so far
    prompt_tokens: int | None = None


_DONE = Chunk(Kind.DONE)
_decode = json.JSONDecoder().raw_decode  # half the time of json.loads, once a token


def read_chunk(data: str) -> Chunk:
    """Understand one event's data. Of several choices the first counts. Raises ``StreamError``."""
    data = data.strip()
    if data == DONE:
        return _DONE
    try:
        content, end = _decode(data)
        if end != len(data):
            raise ValueError("more than one value")
    except (ValueError, RecursionError):
        raise StreamError(f"an event that is not JSON: {_short(data)}") from None
    if not isinstance(content, dict):
        raise StreamError(f"an event that is not an object: {_short(data)}")
    if content.get("error") or content.get("object") == "error":
        raise StreamError(error_text(content))
    said = content.get("usage")
    generated, prompt = _usage(said) if said else (None, None)
    choices = content.get("choices")
    if not choices:
        kind = Kind.EMPTY if generated is None else Kind.USAGE
        return Chunk(kind, completion_tokens=generated, prompt_tokens=prompt)
    try:
        choice = choices[0]
        finished = choice.get("finish_reason") is not None
        kind, text = _generated(choice)
    except (AttributeError, LookupError, TypeError):
        raise StreamError(f"a chunk in no known form: {_short(data)}") from None
    if not isinstance(text, str):
        raise StreamError(f"a chunk whose text is no text: {_short(data)}")
    return Chunk(kind, text, finished, generated, prompt)


def error_text(content: Any) -> str:
    """The message of an error object, in whichever of its usual shapes."""
    found = content.get("error") or content if isinstance(content, dict) else content
    if isinstance(found, dict):
        found = found.get("message") or found.get("detail") or found
    return _short(found if isinstance(found, str) else json.dumps(found, ensure_ascii=False))


def _generated(choice: dict[str, Any]) -> tuple[Kind, str]:
    delta = choice.get("delta")
    if delta is None:  # completions
        text = choice.get("text") or ""
        return (Kind.TEXT if text else Kind.EMPTY), text
    if text := delta.get("content"):
        return Kind.TEXT, text
    for name in REASONING_FIELDS:
        if text := delta.get(name):
            return Kind.REASONING, text
    if calls := delta.get("tool_calls"):
        parts = [call.get("function") or {} for call in calls]
        return Kind.TOOL, "".join((p.get("name") or "") + (p.get("arguments") or "") for p in parts)
    return (Kind.ROLE if delta.get("role") else Kind.EMPTY), ""


def _usage(usage: Any) -> tuple[int | None, int | None]:
    if not isinstance(usage, dict):
        return None, None
    counts = usage.get("completion_tokens"), usage.get("prompt_tokens")
    generated, prompt = (n if type(n) is int and 0 <= n <= MOST_TOKENS else None for n in counts)
    return generated, prompt


def _short(text: str) -> str:
    line = " ".join(text.split())
    return line if len(line) <= 200 else line[:197] + "..."


@dataclass(slots=True)
class StreamReader:
    """Follows one stream. Feed it bytes with the time they came; then ask what they were.

    ``moments`` has (time, text, tokens so far by ``usage``) of each chunk that brought tokens; an
    event's time is that of its last byte.
    """

    moments: list[tuple[float, str, int | None]] = field(default_factory=list)
    done: bool = False
    finished: bool = False  # a finish reason was given
    completion_tokens: int | None = None
    prompt_tokens: int | None = None
    _parser: EventParser = field(default_factory=EventParser)

    @property
    def complete(self) -> bool:
        """Whether the stream came to its end: the end mark, or at least the reason why it finished."""
        return self.done or self.finished

    @property
    def text(self) -> str:
        """Everything that was generated; half a surrogate pair becomes U+FFFD."""
        joined = "".join(text for _, text, _ in self.moments)
        return joined.encode("utf-16", "surrogatepass").decode("utf-16", "replace")

    @property
    def comments(self) -> int:
        """How many comment lines there were; servers send them to keep a connection open."""
        return self._parser.comments

    def feed(self, data: bytes, now: float) -> None:
        """Take what arrived at ``now``. Raises ``StreamError``; what came before it is kept."""
        for event in self._parser.feed(data):
            self._take(event, now)

    def close(self, now: float) -> None:
        """The stream ended at ``now``: a last event may lack its blank line. Raises ``StreamError``."""
        for event in self._parser.close():
            self._take(event, now)

    def _take(self, event: str, now: float) -> None:
        if self.done:
            return
        chunk = read_chunk(event)
        if chunk is _DONE:
            self.done = True
            return
        if chunk.finished:
            self.finished = True
        if chunk.completion_tokens is not None:
            self.completion_tokens = chunk.completion_tokens
            self.prompt_tokens = chunk.prompt_tokens
        if chunk.text:
            self.moments.append((now, chunk.text, chunk.completion_tokens))


@dataclass(frozen=True, slots=True)
class Credit:
    """Tokens of each event, where their number comes from, and what does not add up."""

    events: list[tuple[float, int]]
    source: str  # "usage", "tokenizer" or "chunks"
    note: str | None = None


def credit(stream: StreamReader, count_tokens: CountTokens | None = None) -> Credit:
    """Say how many tokens each chunk of text brought.

    The total is what ``usage`` says, else what ``count_tokens`` makes of the whole text, else the
    number of chunks. Where each chunk also carries the running usage, its share is known. Otherwise
    every chunk has one token, and tokens beyond that are shared out in proportion to the length of the
    text, late rather than early (an end token has no text). With fewer tokens than chunks, the later
    ones bring none. The events add up to the total always; ``note`` says whatever had to be assumed,
    and when the two ways of counting disagree.
    """
    times = [time for time, _, _ in stream.moments]
    said = stream.completion_tokens
    counted = None if count_tokens is None else count_tokens(stream.text)
    total = said if said is not None else counted
    source = "usage" if said is not None else "chunks" if counted is None else "tokenizer"
    notes = []
    if said is not None and counted is not None and said != counted:
        notes.append(f"usage says {said} tokens, the tokenizer {counted}")
    if total is None:
        return Credit([(time, 1) for time in times], source)
    if not times:
        return Credit([], source, f"{total} tokens and no text: nobody saw when they came" if total else None)
    if (running := _running(stream, total)) is not None:
        shares = running
    elif total == len(times):
        shares = [1] * total
    else:
        notes.append(f"{total} tokens in {len(times)} chunks: shared out by length of text")
        shares = _share_out(
            total, [len(text.encode(errors="surrogatepass")) for _, text, _ in stream.moments]
        )
    events = [(time, n) for time, n in zip(times, shares, strict=True) if n]
    return Credit(events, source, "; ".join(notes) or None)


def _running(stream: StreamReader, total: int) -> list[int] | None:
    """Each chunk's own tokens, from the running totals; None unless they are all there and add up."""
    seen = [tokens for _, _, tokens in stream.moments if tokens is not None]
    if len(seen) < len(stream.moments) or seen != sorted(seen) or seen[-1] > total or seen[0] < 1:
        return None
    shares = [after - before for before, after in zip([0, *seen], seen, strict=False)]
    shares[-1] += total - seen[-1]  # generated after the last text, such as the end token
    return shares


def _share_out(total: int, lengths: Sequence[int]) -> list[int]:
    chunks = len(lengths)
    if total < chunks:
        return [1] * total + [0] * (chunks - total)
    extra, whole, sofar, given = total - chunks, sum(lengths), 0, 0
    shares = []
    for length in lengths:
        sofar += length
        upto = extra * sofar // whole
        shares.append(1 + upto - given)
        given = upto
    return shares
