"""What may be asked: the bodies of ``/v1/completions`` and ``/v1/chat/completions``.

Every field is honoured or refused. A field that is not here (``user``, ``metadata``, ``tools``, ...)
is refused with 400, because a caller who sets it expects it to matter. Types are strict (``"5"`` and
``5.0`` are not an integer); ``null`` means the default; ranges are checked in one place,
``SamplingParams``. Defaults are OpenAI's: temperature 1, 16 tokens for a completion, the rest of the
context for a chat.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Discriminator, Field, SkipValidation, Tag

from servelib.errors import InvalidRequestError, check_int
from servelib.request import MAX_LOGPROBS, SamplingParams
from servelib.text.tokenizer import check_unicode

MAX_STOPS = 16
MAX_CHOICES = 128  # of one call: prompts times n


def kind_of_prompt(prompt: object) -> str | None:
    """Which of the four kinds of prompt this is, by its first item; None for neither."""
    if isinstance(prompt, str):
        return "text"
    if not isinstance(prompt, list):
        return None
    first = prompt[0] if prompt else ""
    return "texts" if isinstance(first, str) else "lists" if isinstance(first, list) else "ids"


# A list is given up at its first bad item: a million of them would be a million complaints.
TokenIds = Annotated[list[int], Field(fail_fast=True)]
Texts = Annotated[list[str], Field(fail_fast=True)]
Prompt = Annotated[
    Annotated[str, Tag("text")]
    | Annotated[Texts, Tag("texts")]
    | Annotated[TokenIds, Tag("ids")]
    | Annotated[list[TokenIds], Field(fail_fast=True), Tag("lists")],
    Discriminator(
        kind_of_prompt,
        custom_error_type="prompt_kind",
        custom_error_message="Must be a text, a list of texts, a list of token ids, or a list of such lists",
    ),
]


class StrictModel(BaseModel):
    """Refuses unknown fields and values of another type."""

    model_config = ConfigDict(extra="forbid", strict=True, allow_inf_nan=False)


class StreamOptions(StrictModel):
    """What a stream carries besides text."""

    include_usage: bool = False


class GenerationBody(StrictModel):
    """The fields that both endpoints share."""

    model: str
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    n: int | None = None
    max_tokens: int | None = None
    min_tokens: int | None = None
    temperature: float | None = None
    top_k: int | None = None
    top_p: float | None = None
    min_p: float | None = None
    presence_penalty: float | None = None
    frequency_penalty: float | None = None
    repetition_penalty: float | None = None
    logit_bias: dict[str, SkipValidation[float]] | None = None  # each value is checked once, later
    stop: str | Texts | None = None
    stop_token_ids: TokenIds | None = None
    ignore_eos: bool | None = None
    seed: int | None = None

    @property
    def token_limit(self) -> tuple[str, int | None]:
        """The field that says how many tokens may be generated, and its value."""
        return "max_tokens", self.max_tokens

    @property
    def asked_logprobs(self) -> tuple[str, int | None]:
        """The field that says how many alternatives each token is shown with, and its value."""
        return "logprobs", None

    @property
    def choices_each(self) -> int:
        """How many answers a prompt gets."""
        return 1 if self.n is None else self.n

    @property
    def include_usage(self) -> bool:
        """Whether a stream ends with a usage chunk."""
        return self.stream_options is not None and self.stream_options.include_usage

    def check_supported(self) -> None:
        """Raise ``InvalidRequestError`` for what is known but not served, or does not fit together."""
        check_int("n", self.choices_each, 1, MAX_CHOICES)
        if self.stream_options is not None and not self.stream:
            raise InvalidRequestError("stream_options", "a value", "absent when stream is not true")

    def sampling(self, *, default_max_tokens: int, end_ids: tuple[int, ...] = ()) -> SamplingParams:
        """The engine's parameters. ``end_ids`` end the text like the end token does.

        Raises ``InvalidRequestError``, naming the field as the caller spelled it.
        """
        self.check_supported()
        limit_field, max_tokens = self.token_limit
        logprobs_field, logprobs = self.asked_logprobs
        if self.ignore_eos:
            end_ids = ()
        given: dict[str, Any] = {
            "max_tokens": default_max_tokens if max_tokens is None else max_tokens,
            "temperature": 1.0 if self.temperature is None else self.temperature,
            "logprobs": logprobs,
            "stop": self._stops(),
            "stop_token_ids": (*(self.stop_token_ids or ()), *end_ids),
            "logit_bias": self._bias(),
            "min_tokens": self.min_tokens,
            "top_k": self.top_k,
            "top_p": self.top_p,
            "min_p": self.min_p,
            "presence_penalty": self.presence_penalty,
            "frequency_penalty": self.frequency_penalty,
            "repetition_penalty": self.repetition_penalty,
            "ignore_eos": self.ignore_eos,
            "seed": self.seed,
        }
        with renamed_fields(max_tokens=limit_field, logprobs=logprobs_field):
            return SamplingParams(**{name: value for name, value in given.items() if value is not None})

    def _stops(self) -> tuple[str, ...]:
        stops = [self.stop] if isinstance(self.stop, str) else self.stop or []
        if len(stops) > MAX_STOPS:
            raise InvalidRequestError("stop", f"{len(stops)} strings", f"at most {MAX_STOPS} strings")
        for stop in stops:
            check_unicode(stop, "stop")
        return tuple(stops)

    def _bias(self) -> dict[int, float]:
        bias: dict[int, float] = {}
        for key, value in (self.logit_bias or {}).items():
            if not (key.isascii() and key.isdigit() and len(key) < 20 and key == str(int(key))):
                raise InvalidRequestError("logit_bias", key, 'a token id as the key, such as "65"')
            bias[int(key)] = value
        return bias


class CompletionBody(GenerationBody):
    """The body of ``POST /v1/completions``: one or several prompts, as text or as token ids.

    Choices are numbered prompt by prompt: with ``n`` 2, the second prompt's are 2 and 3.
    """

    prompt: Prompt
    logprobs: int | None = None
    echo: bool | None = None
    best_of: int | None = None
    suffix: Literal[""] | None = None

    @property
    def asked_logprobs(self) -> tuple[str, int | None]:
        """A number: alternatives to show for each token."""
        return "logprobs", self.logprobs

    @property
    def prompts(self) -> list[str] | list[list[int]]:
        """The prompts as a list, however they were given. Raises ``InvalidRequestError``."""
        self.check_supported()
        given: Any = [self.prompt] if kind_of_prompt(self.prompt) in ("text", "ids") else self.prompt
        if not given:
            raise InvalidRequestError("prompt", given, "at least one prompt")
        if len(given) * self.choices_each > MAX_CHOICES:
            limit = f"at most {MAX_CHOICES} choices in all (prompts times n)"
            raise InvalidRequestError("prompt", f"{len(given)} prompts, n {self.choices_each}", limit)
        return list(given)

    def check_supported(self) -> None:
        """Also refuses to choose among choices, and to score the prompt."""
        super().check_supported()
        if self.best_of not in (None, self.choices_each):
            limit = f"{self.choices_each}, the same as n: every choice is given back"
            raise InvalidRequestError("best_of", self.best_of, limit)
        if self.echo and self.logprobs is not None:
            raise InvalidRequestError("echo", True, "false when logprobs is set: the prompt is not scored")


class TextPart(StrictModel):
    """One part of a message."""

    type: Literal["text"]
    text: str


class ChatMessage(StrictModel):
    """One turn of a conversation; its role is checked by the chat template."""

    role: str
    content: str | Annotated[list[TextPart], Field(fail_fast=True)]

    @property
    def text(self) -> str:
        """The content as one string."""
        if isinstance(self.content, str):
            return self.content
        return "".join(part.text for part in self.content)


class ChatBody(GenerationBody):
    """The body of ``POST /v1/chat/completions``."""

    messages: Annotated[list[ChatMessage], Field(fail_fast=True)]
    max_completion_tokens: int | None = None
    logprobs: bool | None = None
    top_logprobs: int | None = None

    @property
    def token_limit(self) -> tuple[str, int | None]:
        """The newer name wins; ``check_supported`` refuses both at once."""
        if self.max_completion_tokens is not None:
            return "max_completion_tokens", self.max_completion_tokens
        return "max_tokens", self.max_tokens

    @property
    def asked_logprobs(self) -> tuple[str, int | None]:
        """A switch, and beside it the number of alternatives."""
        return "top_logprobs", (self.top_logprobs or 0) if self.logprobs else None

    def check_supported(self) -> None:
        """Also refuses both names of the token limit at once, and alternatives without the switch."""
        super().check_supported()
        if self.max_tokens is not None and self.max_completion_tokens is not None:
            raise InvalidRequestError("max_tokens", self.max_tokens, "absent: max_completion_tokens is given")
        if self.top_logprobs is not None:
            check_int("top_logprobs", self.top_logprobs, 0, MAX_LOGPROBS)
            if not self.logprobs:
                raise InvalidRequestError("top_logprobs", self.top_logprobs, "absent unless logprobs is true")


@contextmanager
def renamed_fields(**names: str) -> Iterator[None]:
    """Let an ``InvalidRequestError`` of the body name fields as the caller spelled them."""
    try:
        yield
    except InvalidRequestError as error:
        if error.field not in names:
            raise
        raise InvalidRequestError(names[error.field], error.value, error.limit) from error
