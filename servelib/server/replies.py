"""What is promised to come back: OpenAI's response shapes, as declared in ``/openapi.json``.

``servelib.server.wire`` writes them; chunks of a stream by hand, because that is done for each token.
"""

from __future__ import annotations

from typing import Generic, Literal, TypeVar

from pydantic import BaseModel


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
