"""HTTP in front of any engine. One request's life reads top to bottom in ``completions`` and ``chat``."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from fastapi import FastAPI, Request, Response

from servelib.clock import Clock, WallClock
from servelib.engine.protocol import Engine
from servelib.server.access import install_access
from servelib.server.answer import Answer
from servelib.server.body import JsonRoute
from servelib.server.choices import choices_of
from servelib.server.docs import serve_docs
from servelib.server.errors import RESPONSES, answers, install_error_handlers
from servelib.server.log import LogCalls
from servelib.server.probes import add_probes
from servelib.server.replies import ChatChoice, CompletionChoice, Envelope
from servelib.server.schema import ChatBody, CompletionBody, renamed_fields
from servelib.server.service import Service, model_id_of
from servelib.server.settings import ServerSettings
from servelib.server.tokens import token_routes
from servelib.server.wire import ChatFormat, CompletionFormat
from servelib.spans import SpanLog
from servelib.text.chat import ChatTemplate
from servelib.text.tokenizer import Tokenizer

STUCK = 5.0  # seconds after which a server that stops no longer waits for the step under way


def create_app(
    engine: Engine,
    *,
    tokenizer: Tokenizer | None = None,
    chat_template: ChatTemplate | None = None,
    model_id: str | None = None,
    spans: SpanLog | None = None,
    clock: Clock | None = None,
    settings: ServerSettings | None = None,
) -> FastAPI:
    """The application. It runs ``engine`` in a thread of its own from start-up to shut-down.

    ``model_id`` is the name that callers use; by default made from the model's label. With
    ``spans``, the server records its stages there; give the engine the same log and clock. The limits on
    connections in ``settings`` are the server's (``servelib.server.run``), the rest holds anywhere.
    Raises ``ValueError`` for a tokenizer that cannot spell every token of the model.
    """
    settings = settings or ServerSettings()
    service = Service(
        engine,
        tokenizer or Tokenizer(),
        chat_template or ChatTemplate(),
        model_id or model_id_of(engine.model.config.label),
        spans,
        clock or WallClock(),
        settings,
    )

    @asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncIterator[None]:
        service.loop.start()
        try:
            yield
        finally:
            service.loop.stop(timeout=STUCK)

    # The stock /docs page loads scripts from elsewhere; ``serve_docs`` has its own.
    # A slash too many is a 404: a redirect would go to whatever host the caller wrote into the head.
    app = FastAPI(title="servelib", lifespan=lifespan, docs_url=None, redoc_url=None, redirect_slashes=False)
    app.state.service = service
    app.router.route_class = JsonRoute
    install_error_handlers(app)
    install_access(app, settings)
    app.add_middleware(
        LogCalls, clock=service.clock, prompt_of=service.tokenizer.decode if settings.log_prompts else None
    )
    add_probes(app, service.loop)

    @app.post("/v1/completions", responses=answers(Envelope[CompletionChoice]))
    async def completions(body: CompletionBody, http: Request) -> Response:
        """Continue a prompt."""
        request_id = service.receive(http, "cmpl", body.model)
        prompts = await service.prompts(request_id, body.prompts)
        echo = service.text_of if body.echo else None
        choices = choices_of(request_id, prompts, body, service.limits, default_max_tokens=16, echo=echo)
        return Answer(service.job(request_id, choices, prompts, body, CompletionFormat))

    @app.post("/v1/chat/completions", responses=answers(Envelope[ChatChoice]))
    async def chat(body: ChatBody, http: Request) -> Response:
        """Answer a conversation."""
        request_id = service.receive(http, "chatcmpl", body.model)
        prompts = [await service.conversation(request_id, body.messages)]
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

    app.include_router(token_routes(service))
    serve_docs(app)
    return app
