"""HTTP in front of any engine. One request's life reads top to bottom in ``completions`` and ``chat``."""

from __future__ import annotations

import time
import uuid
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from fastapi import FastAPI, Request, Response
from fastapi.responses import JSONResponse
from starlette.types import ASGIApp, Receive, Scope, Send

from servelib.clock import Clock, WallClock
from servelib.engine.protocol import Engine
from servelib.server.answer import Answer, Job
from servelib.server.choices import Limits, Prompt, choices_of
from servelib.server.errors import RESPONSES, UnknownModelError, install_error_handlers
from servelib.server.loop import EngineLoop
from servelib.server.replies import ChatChoice, CompletionChoice, Envelope
from servelib.server.schema import ChatBody, CompletionBody, GenerationBody, renamed_fields
from servelib.server.stream import Choice
from servelib.server.wire import ChatFormat, CompletionFormat
from servelib.spans import Span, SpanLog, Stage, timed
from servelib.text.chat import ChatTemplate, Message, encode_segments
from servelib.text.tokenizer import Tokenizer

RECEIVED = "servelib.received"  # scope key: when the request reached this program


def create_app(
    engine: Engine,
    *,
    tokenizer: Tokenizer | None = None,
    chat_template: ChatTemplate | None = None,
    model_id: str | None = None,
    spans: SpanLog | None = None,
    clock: Clock | None = None,
) -> FastAPI:
    """The application. It runs ``engine`` in a thread of its own from start-up to shut-down.

    ``model_id`` is the name that callers use; by default made from the model's label. With
    ``spans``, the server records its stages there; give the engine the same log and clock.
    Raises ``ValueError`` for a tokenizer that cannot spell every token of the model.
    """
    service = Service(
        engine,
        tokenizer or Tokenizer(),
        chat_template or ChatTemplate(),
        model_id or model_id_of(engine.model.config.label),
        spans,
        clock or WallClock(),
    )

    @asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncIterator[None]:
        service.loop.start()
        try:
            yield
        finally:
            service.loop.stop()

    # The stock /docs page loads scripts from elsewhere; /openapi.json is served.
    app = FastAPI(title="servelib", lifespan=lifespan, docs_url=None, redoc_url=None)
    app.state.service = service
    app.add_middleware(StampArrival, clock=service.clock)
    install_error_handlers(app)

    @app.post("/v1/completions", responses={200: {"model": Envelope[CompletionChoice]}, **RESPONSES})
    async def completions(body: CompletionBody, http: Request) -> Response:
        """Continue a prompt."""
        request_id = service.receive(http, "cmpl", body)
        prompts = [service.prompt(request_id, prompt) for prompt in body.prompts]
        echo = service.text_of if body.echo else None
        choices = choices_of(request_id, prompts, body, service.limits, default_max_tokens=16, echo=echo)
        return Answer(service.job(request_id, choices, prompts, body, CompletionFormat))

    @app.post("/v1/chat/completions", responses={200: {"model": Envelope[ChatChoice]}, **RESPONSES})
    async def chat(body: ChatBody, http: Request) -> Response:
        """Answer a conversation."""
        request_id = service.receive(http, "chatcmpl", body)
        with timed(spans, service.clock, request_id, Stage.TEMPLATE):
            messages = [Message(message.role, message.text) for message in body.messages]
            segments = service.chat_template.render(messages)
        with timed(spans, service.clock, request_id, Stage.TOKENIZE):
            prompt_ids = encode_segments(service.tokenizer, segments)
        prompts = [Prompt(prompt_ids)]
        with renamed_fields(prompt="messages"):
            choices = choices_of(request_id, prompts, body, service.limits, end_ids=service.turn_end_ids)
        return Answer(service.job(request_id, choices, prompts, body, ChatFormat))

    @app.get("/v1/models")
    async def models() -> dict[str, Any]:
        """The one model that is served."""
        return {"object": "list", "data": [service.model_card()]}

    @app.get("/v1/models/{model_id:path}", responses=RESPONSES)
    async def model(model_id: str) -> dict[str, Any]:
        """What is known about the model."""
        service.check_model(model_id)
        return service.model_card()

    @app.get("/health")
    async def health() -> JSONResponse:
        """200 while requests can be served, 503 with the reason when not."""
        failure = service.loop.failure
        if failure is None:
            return JSONResponse({"status": "ok"})
        return JSONResponse({"status": "failed", "reason": failure}, status_code=503)

    return app


class Service:
    """What the routes share: the engine's thread, the tokenizer, the template, the log."""

    def __init__(
        self,
        engine: Engine,
        tokenizer: Tokenizer,
        chat_template: ChatTemplate,
        model_id: str,
        spans: SpanLog | None,
        clock: Clock,
    ) -> None:
        self.config = engine.model.config
        if tokenizer.vocab_size < self.config.vocab_size:
            raise ValueError(
                f"tokenizer: got {tokenizer.vocab_size} tokens, must be at least {self.config.vocab_size}: "
                f"{self.config.label} can generate that many"
            )
        self.limits = Limits(self.config.vocab_size, self.config.context)
        self.loop = EngineLoop(engine)
        self.tokenizer = tokenizer
        self.chat_template = chat_template
        self.turn_end_ids = chat_template.stop_ids(tokenizer)
        self.model_id = model_id
        self.spans = spans
        self.clock = clock
        self._created = int(time.time())

    def receive(self, http: Request, prefix: str, body: GenerationBody) -> str:
        """Name a request whose body is read and valid; its first stage ends here.

        The stage began when the server passed the request on to this program, its head read and
        its body not yet.
        """
        request_id = f"{prefix}-{uuid.uuid4().hex}"
        if self.spans is not None:
            start: float = http.scope[RECEIVED]
            self.spans.record(Span(request_id, Stage.RECEIVE, start, self.clock.now()))
        self.check_model(body.model)
        return request_id

    def check_model(self, model_id: str) -> None:
        """Raise ``UnknownModelError`` for any other name than this model's."""
        if model_id != self.model_id:
            raise UnknownModelError(model_id, self.model_id)

    def prompt(self, request_id: str, given: str | list[int]) -> Prompt:
        """A prompt as typed, or as the ids it was given in."""
        if not isinstance(given, str):
            return Prompt(tuple(given))
        with timed(self.spans, self.clock, request_id, Stage.TOKENIZE):
            return Prompt(self.tokenizer.encode(given), given)

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


class StampArrival:
    """Notes when a request reached this program, before anything has been read of its body."""

    def __init__(self, app: ASGIApp, clock: Clock) -> None:
        self._app = app
        self._clock = clock

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Stamp, then pass on (the ASGI side of a middleware)."""
        scope[RECEIVED] = self._clock.now()
        await self._app(scope, receive, send)


def model_id_of(label: str) -> str:
    """A short name for callers: ``TinyGPT (reference, random weights)`` gives ``tinygpt``."""
    return "-".join(label.partition("(")[0].lower().split()) or "model"
