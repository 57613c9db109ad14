"""``/tokenize`` and ``/detokenize``: what a prompt is to this model, in vLLM's shapes."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Request, Response
from pydantic import BaseModel, Field

from servelib.errors import InvalidRequestError
from servelib.server.body import JsonRoute
from servelib.server.errors import RESPONSES
from servelib.server.schema import ChatMessage, StrictModel, TokenIds, renamed_fields
from servelib.server.service import Service, aside


class TokenizeBody(StrictModel):
    """The body of ``POST /tokenize``: a prompt as a completion takes it, or messages as a chat does.

    ``add_special_tokens`` puts the begin-of-text token in front of a prompt (by default it is not: the
    ids are those that ``/v1/completions`` would compute). ``add_generation_prompt`` (by default true)
    opens the assistant's turn behind the messages. ``return_token_strs`` spells each token.
    """

    model: str | None = None
    prompt: str | None = None
    messages: Annotated[list[ChatMessage], Field(fail_fast=True)] | None = None
    add_special_tokens: bool | None = None
    add_generation_prompt: bool | None = None
    return_token_strs: bool | None = None

    def check_fit(self) -> None:
        """Raise ``InvalidRequestError`` unless there is one text, and options that concern it."""
        if (self.prompt is None) == (self.messages is None):
            got = "neither" if self.prompt is None else "both"
            raise InvalidRequestError("prompt", got, "given, or else messages")
        if self.prompt is not None and self.add_generation_prompt is not None:
            limit = "absent without messages"
            raise InvalidRequestError("add_generation_prompt", self.add_generation_prompt, limit)
        if self.messages is not None and self.add_special_tokens:
            limit = "false with messages: the chat template writes its own"
            raise InvalidRequestError("add_special_tokens", True, limit)


class TokenizeReply(BaseModel):
    """The ids, how many they are, and how many the model can hold, the answer included."""

    count: int
    max_model_len: int
    tokens: list[int]
    token_strs: list[str] | None = None


class DetokenizeBody(StrictModel):
    """The body of ``POST /detokenize``: token ids, at most as many as the model can hold."""

    model: str | None = None
    tokens: TokenIds


class DetokenizeReply(BaseModel):
    """Their text. Special tokens print nothing; bytes that are no UTF-8 become U+FFFD."""

    prompt: str


def token_routes(service: Service) -> APIRouter:
    """The two routes."""
    router = APIRouter(route_class=JsonRoute, responses=RESPONSES)
    tokenizer, limits = service.tokenizer, service.limits

    @router.post("/tokenize", response_model=TokenizeReply)
    async def tokenize(body: TokenizeBody, http: Request) -> Response:
        """The token ids of a prompt or of a conversation."""
        request_id = service.receive(http, "tok", body.model)
        body.check_fit()
        if body.messages is not None:
            opened = body.add_generation_prompt is not False
            prompt = await service.conversation(request_id, body.messages, add_generation_prompt=opened)
        else:
            [prompt] = await service.prompts(request_id, [body.prompt or ""])
        front = (service.begin_id,) if body.add_special_tokens else ()
        ids = [*front, *prompt.ids]

        def reply() -> str:
            spelled = [tokenizer.token_text(id_) for id_ in ids] if body.return_token_strs else None
            return TokenizeReply(
                count=len(ids), max_model_len=limits.context, tokens=ids, token_strs=spelled
            ).model_dump_json()

        return Response(await aside(len(ids), reply), media_type="application/json")

    @router.post("/detokenize")
    async def detokenize(body: DetokenizeBody, http: Request) -> DetokenizeReply:
        """The text of token ids."""
        service.receive(http, "detok", body.model)
        if len(body.tokens) > limits.context:
            limit = f"at most {limits.context} tokens, the model's context"
            raise InvalidRequestError("tokens", f"{len(body.tokens)} tokens", limit)
        with renamed_fields(token_id="tokens"):
            return DetokenizeReply(prompt=tokenizer.decode(body.tokens))

    return router
