"""Messages to one prompt, through a jinja2 template, with a border that no user can cross.

A template writes control markers (``<|turn|>``); a user may type the same letters. While the
template runs, each user's text is a stand-in with a random name, drawn after the text was known; what
comes out is split at the stand-ins. So it is certain, piece by piece, who wrote what, and only
the template's own pieces can become special tokens. Nothing is escaped, and no text is changed.
"""

from __future__ import annotations

import re
import secrets
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, NoReturn

from jinja2 import TemplateError
from jinja2.sandbox import ImmutableSandboxedEnvironment

from servelib.errors import InvalidRequestError
from servelib.text.tokenizer import BOS, END_OF_TURN, EOS, Tokenizer

ROLES = ("system", "user", "assistant")

DEFAULT_TEMPLATE = """\
{{ bos_token }}
{%- for message in messages %}<|turn|>{{ message.role }}
{{ message.content }}<|end|>
{% endfor %}
{%- if add_generation_prompt %}<|turn|>assistant
{% endif %}"""


@dataclass(frozen=True, slots=True)
class Message:
    """One turn: who (one of ``ROLES``) said what."""

    role: str
    content: str


@dataclass(frozen=True, slots=True)
class Segment:
    """A piece of a rendered prompt: the template's own text, or text that somebody typed."""

    text: str
    trusted: bool


class ChatTemplate:
    """A compiled template. ``stop_tokens`` are the markers that end an assistant's turn.

    The template sees ``messages`` (each with ``role`` and ``content``), ``add_generation_prompt``,
    ``bos_token``, ``eos_token`` and ``raise_exception(text)``, as templates of published models
    expect. It runs in jinja2's immutable sandbox. Raises ``ValueError`` for a template that does not
    compile.
    """

    def __init__(
        self,
        source: str = DEFAULT_TEMPLATE,
        *,
        bos_token: str = BOS,
        eos_token: str = EOS,
        stop_tokens: Sequence[str] = (END_OF_TURN,),
    ) -> None:
        environment = ImmutableSandboxedEnvironment(
            trim_blocks=True, lstrip_blocks=True, keep_trailing_newline=True
        )
        try:
            self._template = environment.from_string(source)
        except TemplateError as error:
            raise ValueError(f"chat template: {error}") from error
        self._globals = {"bos_token": bos_token, "eos_token": eos_token, "raise_exception": _refuse}
        self.stop_tokens = tuple(stop_tokens)

    def render(
        self, messages: Sequence[Message], *, add_generation_prompt: bool = True
    ) -> tuple[Segment, ...]:
        """The prompt, in pieces.

        Raises ``InvalidRequestError`` for no messages, an unknown role, or a template that fails on
        them.
        """
        if not messages:
            raise InvalidRequestError("messages", messages, "at least one message")
        for index, message in enumerate(messages):
            if message.role not in ROLES:
                roles = ", ".join(ROLES)
                raise InvalidRequestError(
                    "messages", message.role, f"one of {roles} in messages[{index}].role"
                )
        shelf = _Shelf()
        given = [{"role": m.role, "content": shelf.stand_in(m.content)} for m in messages]
        try:
            text = self._template.render(
                messages=given, add_generation_prompt=add_generation_prompt, **self._globals
            )
        except Exception as error:  # templates are programs: any error of theirs is about the messages
            raise InvalidRequestError(
                "messages", f"{len(messages)} messages", f"what the chat template accepts: {error}"
            ) from error
        return shelf.split(text)

    def stop_ids(self, tokenizer: Tokenizer) -> tuple[int, ...]:
        """The ids of ``stop_tokens`` in this vocabulary."""
        return tuple(tokenizer.specials[token] for token in self.stop_tokens if token in tokenizer.specials)


def encode_segments(tokenizer: Tokenizer, segments: Iterable[Segment]) -> tuple[int, ...]:
    """Token ids of a rendered prompt: markers count in trusted pieces only."""
    ids: list[int] = []
    for segment in segments:
        encode = tokenizer.encode_markers if segment.trusted else tokenizer.encode
        ids += encode(segment.text, field="messages")
    return tuple(ids)


class _Shelf:
    """Keeps the users' texts of one rendering while stand-ins travel through the template."""

    def __init__(self) -> None:
        self._key = secrets.token_hex(16)
        self._texts: list[str] = []

    def stand_in(self, text: str) -> _StandIn:
        self._texts.append(text)
        held = _StandIn(f"\x00{self._key}:{len(self._texts) - 1}\x00")
        held._text, held._shelf = text, self
        return held

    def split(self, rendered: str) -> tuple[Segment, ...]:
        parts = re.split(f"\x00{self._key}:([0-9]+)\x00", rendered)
        if any(self._key in part or "\x00" in part for part in parts[::2]):
            raise InvalidRequestError(
                "messages", "a text the chat template took apart", "content that it passes on whole"
            )
        segments = (
            Segment(self._texts[int(part)], trusted=False) if index % 2 else Segment(part, trusted=True)
            for index, part in enumerate(parts)
        )
        return tuple(segment for segment in segments if segment.text)


class _StandIn(str):
    """Prints as its random name; answers questions, and is trimmed or split, as the text it stands for."""

    __slots__ = ("_shelf", "_text")  # underscores: the sandbox keeps templates out
    _text: str
    _shelf: _Shelf

    def __str__(self) -> str:
        return self  # filters begin with str(value); the result must still know what it stands for

    def __iter__(self) -> Iterator[_StandIn]:
        return map(self._shelf.stand_in, self._text)


def _delegate(name: str) -> Callable[..., Any]:
    def method(self: _StandIn, *args: Any, **kwargs: Any) -> Any:
        plain = [arg._text if isinstance(arg, _StandIn) else arg for arg in args]
        return _guard(getattr(self._text, name)(*plain, **kwargs), self._shelf)

    return method


def _guard(value: Any, shelf: _Shelf) -> Any:
    """Whatever is cut from a user's text is still a user's text."""
    if isinstance(value, str):
        return shelf.stand_in(value)
    if isinstance(value, list | tuple):
        return type(value)(_guard(item, shelf) for item in value)
    return value


_DELEGATED = """
    strip lstrip rstrip removeprefix removesuffix replace split rsplit splitlines partition rpartition
    lower upper title capitalize startswith endswith find rfind index count isdigit isspace
    __getitem__ __contains__ __len__ __eq__ __ne__ __hash__
"""
for _name in _DELEGATED.split():
    setattr(_StandIn, _name, _delegate(_name))


def _refuse(reason: str) -> NoReturn:
    raise TemplateError(reason)
