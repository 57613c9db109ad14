"""What goes out: OpenAI's response shapes, whole and as server-sent events.

``CompletionFormat`` and ``ChatFormat`` write the same fragments in the two dialects.
"""

from __future__ import annotations

from typing import Any, Generic, Literal, Protocol, TypeVar

from pydantic import BaseModel

from servelib.request import FinishReason, SampledToken
from servelib.server.stream import Fragment
from servelib.text.tokenizer import Tokenizer

LEAST_LOGPROB = -9999.0  # JSON has no infinity; OpenAI writes this


class Usage(BaseModel):
    """Tokens of one request. ``completion_tokens`` counts all that were generated for its text."""

    prompt_tokens: int
    completion_tokens: int
    total_tokens: int


class CompletionLogprobs(BaseModel):
    """One entry a token of the text, in four columns."""

    tokens: list[str]
    token_logprobs: list[float]
    top_logprobs: list[dict[str, float]]
    text_offset: list[int]


class CompletionChoice(BaseModel):
    """The text, or a piece of it."""

    index: int = 0
    text: str
    logprobs: CompletionLogprobs | None
    finish_reason: str | None


class TopLogprob(BaseModel):
    """A token that could have been chosen."""

    token: str
    logprob: float
    bytes: list[int] | None


class TokenLogprob(TopLogprob):
    """A token that was chosen."""

    top_logprobs: list[TopLogprob]


class ChatLogprobs(BaseModel):
    """One entry a token of the text."""

    content: list[TokenLogprob]


class AssistantText(BaseModel):
    """The assistant's message, or in a stream what is new of it."""

    role: Literal["assistant"] = "assistant"
    content: str = ""


class ChatChoice(BaseModel):
    """A whole answer."""

    index: int = 0
    message: AssistantText
    logprobs: ChatLogprobs | None
    finish_reason: str | None


class ChatChunkChoice(BaseModel):
    """A piece of an answer."""

    index: int = 0
    delta: AssistantText
    logprobs: ChatLogprobs | None
    finish_reason: str | None


Choice = TypeVar("Choice", bound=BaseModel)


class Envelope(BaseModel, Generic[Choice]):
    """What every response and chunk has around its choices. The id is that of the request's spans."""

    id: str
    object: str
    created: int
    model: str
    choices: list[Choice]
    usage: Usage | None = None


class Format(Protocol):
    """Writes one request's fragments."""

    def events(self, fragment: Fragment) -> bytes:
        """The server-sent events of the next fragment; after the last one also the end mark."""
        ...

    def whole(self, fragment: Fragment) -> bytes:
        """The JSON body for a request whose fragments were joined into one."""
        ...


class _Shared:
    def __init__(
        self, *, request_id: str, created: int, model: str, tokenizer: Tokenizer, prompt_tokens: int,
        logprobs: bool, include_usage: bool,
    ) -> None:  # fmt: skip
        self._head: dict[str, Any] = {"id": request_id, "created": created, "model": model}
        self._tokenizer = tokenizer
        self._prompt_tokens = prompt_tokens
        self._logprobs = logprobs
        self._include_usage = include_usage

    def _usage(self, generated: int) -> Usage:
        total = self._prompt_tokens + generated
        return Usage(prompt_tokens=self._prompt_tokens, completion_tokens=generated, total_tokens=total)

    def _event(self, kind: type[Envelope[Any]], name: str, choices: list[Any]) -> bytes:
        chunk = kind(**self._head, object=name, choices=choices)
        if self._include_usage:
            chunk.usage = None  # set, so that it is written: null in every chunk but the last
        return _event(chunk.model_dump_json(exclude_unset=True))

    def _end(self, kind: type[Envelope[Any]], name: str, generated: int) -> bytes:
        end = b"data: [DONE]\n\n"
        if not self._include_usage:
            return end
        chunk = kind(**self._head, object=name, choices=[], usage=self._usage(generated))
        return _event(chunk.model_dump_json(exclude_unset=True)) + end


class CompletionFormat(_Shared):
    """The dialect of ``/v1/completions``."""

    def events(self, fragment: Fragment) -> bytes:
        """See ``Format``."""
        kind, name = Envelope[CompletionChoice], "text_completion"
        written = self._event(kind, name, [self._choice(fragment)])
        if fragment.finish_reason is not None:
            written += self._end(kind, name, fragment.generated)
        return written

    def whole(self, fragment: Fragment) -> bytes:
        """See ``Format``."""
        kind, usage = Envelope[CompletionChoice], self._usage(fragment.generated)
        body = kind(**self._head, object="text_completion", choices=[self._choice(fragment)], usage=usage)
        return body.model_dump_json().encode()

    def _choice(self, fragment: Fragment) -> CompletionChoice:
        return CompletionChoice(
            index=0,
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


class ChatFormat(_Shared):
    """The dialect of ``/v1/chat/completions``."""

    _begun = False

    def events(self, fragment: Fragment) -> bytes:
        """See ``Format``. The role travels in a chunk of its own, before the first text."""
        written = b""
        if not self._begun:
            self._begun = True
            written += self._chunk(AssistantText(role="assistant", content=""))
        if fragment.text or (self._logprobs and fragment.tokens):
            delta = AssistantText.model_construct({"content"}, content=fragment.text)
            written += self._chunk(delta, self._content(fragment))
        if fragment.finish_reason is not None:
            written += self._chunk(AssistantText.model_construct(set()), None, fragment.finish_reason)
            written += self._end(Envelope[ChatChunkChoice], "chat.completion.chunk", fragment.generated)
        return written

    def whole(self, fragment: Fragment) -> bytes:
        """See ``Format``."""
        choice = ChatChoice(
            message=AssistantText(content=fragment.text),
            logprobs=self._content(fragment),
            finish_reason=_reason(fragment.finish_reason),
        )
        kind, usage = Envelope[ChatChoice], self._usage(fragment.generated)
        body = kind(**self._head, object="chat.completion", choices=[choice], usage=usage)
        return body.model_dump_json().encode()

    def _chunk(
        self, delta: AssistantText, logprobs: ChatLogprobs | None = None, reason: FinishReason | None = None
    ) -> bytes:
        choice = ChatChunkChoice(index=0, delta=delta, logprobs=logprobs, finish_reason=_reason(reason))
        return self._event(Envelope[ChatChunkChoice], "chat.completion.chunk", [choice])

    def _content(self, fragment: Fragment) -> ChatLogprobs | None:
        return ChatLogprobs(content=[self._token(t) for t in fragment.tokens]) if self._logprobs else None

    def _token(self, token: SampledToken) -> TokenLogprob:
        top = [TopLogprob(**self._spelled(id_, logprob)) for id_, logprob in token.top]
        return TokenLogprob(**self._spelled(token.token_id, token.logprob), top_logprobs=top)

    def _spelled(self, token_id: int, logprob: float | None) -> dict[str, Any]:
        raw = self._tokenizer.token_bytes(token_id)
        text = self._tokenizer.token_text(token_id)
        return {"token": text, "logprob": _finite(logprob), "bytes": list(raw) or None}


def _event(data: str) -> bytes:
    return f"data: {data}\n\n".encode()


def _reason(reason: FinishReason | None) -> str | None:
    return None if reason is None else reason.value


def _finite(logprob: float | None) -> float:
    return LEAST_LOGPROB if logprob is None else max(logprob, LEAST_LOGPROB)
