"""What goes out: fragments written in OpenAI's two dialects, whole and as server-sent events.

A whole answer is one of ``servelib.server.replies``' models. A chunk is written once a token, so it is
put together from text prepared once a call, with only the new text encoded; its bytes mean exactly what
the models would have written.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any, Protocol

from servelib.request import FinishReason, SampledToken
from servelib.server.replies import (
    AssistantText,
    ChatChoice,
    ChatLogprobs,
    CompletionChoice,
    CompletionLogprobs,
    Envelope,
    TokenLogprob,
    TopLogprob,
    Usage,
)
from servelib.server.stream import Fragment
from servelib.text.tokenizer import Tokenizer

LEAST_LOGPROB = -9999.0  # JSON has no infinity; OpenAI writes this
DONE = b"data: [DONE]\n\n"

_encode = json.JSONEncoder(
    ensure_ascii=False, separators=(",", ":")
).encode  # json.dumps makes a new encoder each time
_REASONS = {None: "null"} | {reason: _encode(reason.value) for reason in FinishReason}


class Format(Protocol):
    """Writes one call's fragments."""

    def events(self, fragment: Fragment) -> bytes:
        """The server-sent events of the next fragment of one of the choices."""
        ...

    def end(self, generated: int) -> bytes:
        """The last events, when every choice has ended: usage if it was asked for, and the end mark.

        ``generated`` counts the tokens of all choices.
        """
        ...

    def whole(self, choices: Sequence[Fragment]) -> bytes:
        """The JSON body for choices whose fragments were joined, in order of index."""
        ...


class _Writer:
    """What the dialects share. ``prompt_tokens`` are counted once a prompt, whatever ``n`` is."""

    kind: str  # what a whole answer calls itself
    chunk_kind: str  # what a chunk of a stream calls itself

    def __init__(
        self, *, request_id: str, created: int, model: str, tokenizer: Tokenizer, prompt_tokens: int,
        logprobs: bool, include_usage: bool,
    ) -> None:  # fmt: skip
        self._head: dict[str, Any] = {"id": request_id, "created": created, "model": model}
        self._tokenizer = tokenizer
        self._prompt_tokens = prompt_tokens
        self._logprobs = logprobs
        self._include_usage = include_usage
        head = {"id": request_id, "object": self.chunk_kind, "created": created, "model": model}
        self._before = f'data: {_encode(head)[:-1]},"choices":['
        self._after = '],"usage":null}\n\n' if include_usage else "]}\n\n"

    def end(self, generated: int) -> bytes:
        """See ``Format``."""
        if not self._include_usage:
            return DONE
        usage = self._usage(generated).model_dump_json()
        return f'{self._before}],"usage":{usage}}}\n\n'.encode() + DONE

    def _event(self, choice: str) -> bytes:
        return f"{self._before}{choice}{self._after}".encode()

    def _body(self, choices: list[Any], answers: Sequence[Fragment]) -> bytes:
        usage = self._usage(sum(answer.generated for answer in answers))
        body = Envelope[Any](**self._head, object=self.kind, choices=choices, usage=usage)
        return body.model_dump_json().encode()

    def _usage(self, generated: int) -> Usage:
        total = self._prompt_tokens + generated
        return Usage(prompt_tokens=self._prompt_tokens, completion_tokens=generated, total_tokens=total)


class CompletionFormat(_Writer):
    """The dialect of ``/v1/completions``."""

    kind = chunk_kind = "text_completion"

    def events(self, fragment: Fragment) -> bytes:
        """See ``Format``."""
        logprobs = self._columns(fragment).model_dump_json() if self._logprobs else "null"
        return self._event(
            f'{{"index":{fragment.index},"text":{_encode(fragment.text)},'
            f'"logprobs":{logprobs},"finish_reason":{_REASONS[fragment.finish_reason]}}}'
        )

    def whole(self, choices: Sequence[Fragment]) -> bytes:
        """See ``Format``."""
        return self._body([self._choice(fragment) for fragment in choices], choices)

    def _choice(self, fragment: Fragment) -> CompletionChoice:
        return CompletionChoice(
            index=fragment.index,
            text=fragment.text,
            logprobs=self._columns(fragment) if self._logprobs else None,
            finish_reason=_reason(fragment.finish_reason),
        )

    def _columns(self, fragment: Fragment) -> CompletionLogprobs:
        spell = self._tokenizer.token_text
        return CompletionLogprobs(
            tokens=[spell(token.token_id) for token in fragment.tokens],
            token_logprobs=[_finite(token.logprob) for token in fragment.tokens],
            # The chosen token is always among the shown ones, as in OpenAI's API.
            top_logprobs=[
                {spell(id_): _finite(p) for id_, p in (*token.top, (token.token_id, token.logprob))}
                for token in fragment.tokens
            ],
            text_offset=list(fragment.offsets),
        )


class ChatFormat(_Writer):
    """The dialect of ``/v1/chat/completions``."""

    kind, chunk_kind = "chat.completion", "chat.completion.chunk"

    def __init__(self, **given: Any) -> None:
        super().__init__(**given)
        self._begun: set[int] = set()  # the choices whose role has been said

    def events(self, fragment: Fragment) -> bytes:
        """See ``Format``. The role travels in a chunk of its own, before the first text."""
        index, written = fragment.index, b""
        if index not in self._begun:
            self._begun.add(index)
            written = self._chunk(index, '{"role":"assistant","content":""}')
        if fragment.text or (self._logprobs and fragment.tokens):
            logprobs = self._content(fragment).model_dump_json() if self._logprobs else "null"
            written += self._chunk(index, f'{{"content":{_encode(fragment.text)}}}', logprobs)
        if fragment.finish_reason is not None:
            written += self._chunk(index, "{}", reason=_REASONS[fragment.finish_reason])
        return written

    def whole(self, choices: Sequence[Fragment]) -> bytes:
        """See ``Format``."""
        return self._body([self._choice(fragment) for fragment in choices], choices)

    def _chunk(self, index: int, delta: str, logprobs: str = "null", reason: str = "null") -> bytes:
        return self._event(
            f'{{"index":{index},"delta":{delta},"logprobs":{logprobs},"finish_reason":{reason}}}'
        )

    def _choice(self, fragment: Fragment) -> ChatChoice:
        return ChatChoice(
            index=fragment.index,
            message=AssistantText(content=fragment.text),
            logprobs=self._content(fragment) if self._logprobs else None,
            finish_reason=_reason(fragment.finish_reason),
        )

    def _content(self, fragment: Fragment) -> ChatLogprobs:
        return ChatLogprobs(content=[self._token(token) for token in fragment.tokens])

    def _token(self, token: SampledToken) -> TokenLogprob:
        top = [TopLogprob(**self._spelled(id_, logprob)) for id_, logprob in token.top]
        return TokenLogprob(**self._spelled(token.token_id, token.logprob), top_logprobs=top)

    def _spelled(self, token_id: int, logprob: float | None) -> dict[str, Any]:
        raw = self._tokenizer.token_bytes(token_id)
        text = self._tokenizer.token_text(token_id)
        return {"token": text, "logprob": _finite(logprob), "bytes": list(raw) or None}


def _reason(reason: FinishReason | None) -> str | None:
    return None if reason is None else reason.value


def _finite(logprob: float | None) -> float:
    return LEAST_LOGPROB if logprob is None else max(logprob, LEAST_LOGPROB)
