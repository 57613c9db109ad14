"""What the routes share: the engine's thread, the tokenizer, the template, the names."""

from __future__ import annotations

import asyncio
import time
import uuid
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

from fastapi import Request

from servelib.clock import Clock
from servelib.engine.protocol import Engine
from servelib.errors import InvalidRequestError
from servelib.server.answer import Job
from servelib.server.choices import Limits, Prompt
from servelib.server.errors import UnknownModelError
from servelib.server.log import CALL, Call
from servelib.server.loop import EngineLoop
from servelib.server.schema import ChatMessage, GenerationBody
from servelib.server.settings import ServerSettings
from servelib.server.stream import Choice
from servelib.server.wire import ChatFormat, CompletionFormat
from servelib.spans import Span, SpanLog, Stage, timed
from servelib.text.chat import ChatTemplate, Message, encode_segments
from servelib.text.tokenizer import Tokenizer

LONG = 16_384  # characters: a millisecond or two of tokenising, for which nobody else should wait
Made = TypeVar("Made")


class Service:
    """One engine's server side. Raises ``ValueError`` for a tokenizer too small for the model."""

    def __init__(
        self,
        engine: Engine,
        tokenizer: Tokenizer,
        chat_template: ChatTemplate,
        model_id: str,
        spans: SpanLog | None,
        clock: Clock,
        settings: ServerSettings,
    ) -> None:
        self.config = engine.model.config
        if tokenizer.vocab_size < self.config.vocab_size:
            raise ValueError(
                f"tokenizer: got {tokenizer.vocab_size} tokens, must be at least {self.config.vocab_size}: "
                f"{self.config.label} can generate that many"
            )
        self.limits = Limits(self.config.vocab_size, self.config.context)
        self.loop = EngineLoop(engine, settings=settings, clock=clock)
        self.tokenizer = tokenizer
        self.chat_template = chat_template
        self.turn_end_ids = chat_template.stop_ids(tokenizer)
        self.model_id = model_id
        self.spans = spans
        self.clock = clock
        self._created = int(time.time())

    def receive(self, http: Request, prefix: str, model: str | None) -> str:
        """Name a request whose body is read and valid; its first stage ends here.

        The stage began when the server passed the request on to this program, its head read and
        its body not yet.
        """
        request_id = f"{prefix}-{uuid.uuid4().hex}"
        call: Call = http.scope[CALL]
        call.request_id = request_id
        if self.spans is not None:
            self.spans.record(Span(request_id, Stage.RECEIVE, call.arrived, self.clock.now()))
        self.check_model(model)
        return request_id

    def check_model(self, model_id: str | None) -> None:
        """Raise ``UnknownModelError`` for any other name than this model's; None asks for no name."""
        if model_id not in (None, self.model_id):
            raise UnknownModelError(model_id, self.model_id)

    @property
    def begin_id(self) -> int:
        """The begin-of-text token. Raises ``InvalidRequestError`` if the model has none."""
        if self.config.bos_id is None:
            limit = "false: this model has no begin-of-text token"
            raise InvalidRequestError("add_special_tokens", True, limit)
        return self.config.bos_id

    async def prompts(self, request_id: str, given: Sequence[str] | Sequence[list[int]]) -> list[Prompt]:
        """Prompts as typed, or as the ids they were given in."""

        def tokens_of(prompt: str | list[int]) -> Prompt:
            if not isinstance(prompt, str):
                return Prompt(tuple(prompt))
            with timed(self.spans, self.clock, request_id, Stage.TOKENIZE):
                return Prompt(self.tokenizer.encode(prompt), prompt)

        size = sum(len(prompt) for prompt in given if isinstance(prompt, str))
        return await aside(size, lambda: [tokens_of(prompt) for prompt in given])

    async def conversation(
        self, request_id: str, messages: list[ChatMessage], *, add_generation_prompt: bool = True
    ) -> Prompt:
        """The prompt that the chat template makes of a conversation."""
        turns = [Message(message.role, message.text) for message in messages]

        def prompt() -> Prompt:
            with timed(self.spans, self.clock, request_id, Stage.TEMPLATE):
                segments = self.chat_template.render(turns, add_generation_prompt=add_generation_prompt)
            with timed(self.spans, self.clock, request_id, Stage.TOKENIZE):
                return Prompt(encode_segments(self.tokenizer, segments))

        return await aside(sum(len(turn.content) for turn in turns), prompt)

    def text_of(self, prompt: Prompt) -> str:
        """The text of a prompt whose ids are known to be in the vocabulary."""
        return self.tokenizer.decode(prompt.ids) if prompt.text is None else prompt.text

    def job(
        self,
        request_id: str,
        choices: tuple[Choice, ...],
        prompts: list[Prompt],
        body: GenerationBody,
        form: type[CompletionFormat] | type[ChatFormat],
    ) -> Job:
        """Everything that answering takes."""
        writer = form(
            request_id=request_id,
            created=int(time.time()),
            model=self.model_id,
            tokenizer=self.tokenizer,
            prompt_tokens=sum(len(prompt.ids) for prompt in prompts),
            logprobs=body.asked_logprobs[1] is not None,
            include_usage=body.include_usage,
        )
        return Job(
            self.loop, self.tokenizer, request_id, choices, writer, bool(body.stream), self.spans, self.clock
        )

    def model_card(self) -> dict[str, Any]:
        """The model in the shape of ``/v1/models``."""
        return {
            "id": self.model_id,
            "object": "model",
            "created": self._created,
            "owned_by": "servelib",
            "max_model_len": self.config.context,
        }


async def aside(size: int, work: Callable[[], Made]) -> Made:
    """Do ``work`` on a text of ``size`` characters; in another thread when the event loop would feel it."""
    return await asyncio.to_thread(work) if size > LONG else work()


def model_id_of(label: str) -> str:
    """A short name for callers: ``TinyGPT (reference, random weights)`` gives ``tinygpt``."""
    return "-".join(label.partition("(")[0].lower().split()) or "model"
