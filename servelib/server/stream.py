"""The way from engine outputs to text: tokens, detokeniser, stop strings, fragments.

Streaming and gathering read the same fragments, so joined fragments are the whole text.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Sequence
from dataclasses import dataclass

from servelib.clock import Clock
from servelib.errors import InvalidRequestError
from servelib.request import FinishReason, Request, SampledToken, StepOutput
from servelib.server.ledger import Outcome
from servelib.server.log import Call
from servelib.server.loop import EngineLoop
from servelib.spans import SpanLog, Stage, timed
from servelib.text.detokenizer import IncrementalDetokenizer
from servelib.text.stops import StopMatcher
from servelib.text.tokenizer import Tokenizer

MOST_AT_ONCE = 256  # outputs turned into text in one go: some milliseconds of work


class GenerationError(RuntimeError):
    """The engine failed on a request, or died under it."""


@dataclass(frozen=True, slots=True)
class Choice:
    """One of the answers to a call: its place among them, the engine's request, and what precedes it.

    ``echo`` is text of the prompt that is given back in front of the answer.
    """

    index: int
    request: Request
    echo: str = ""


@dataclass(frozen=True, slots=True)
class Fragment:
    """Text that is final, the tokens it was made of, and on the last one why the choice ended.

    ``offsets`` says where in the whole text each token begins. ``generated`` counts all tokens so
    far, also those that print nothing.
    """

    text: str
    tokens: tuple[SampledToken, ...]
    offsets: tuple[int, ...]
    generated: int
    finish_reason: FinishReason | None = None
    index: int = 0


class TextStream:
    """Turns the outputs of one choice into fragments; knows no engine and no socket.

    A text ends at an end token (which prints nothing), before a stop string, or with the budget.
    Tokens count up to the one that completed the end, however many came in one output.
    """

    def __init__(self, tokenizer: Tokenizer, choice: Choice) -> None:
        self._index = choice.index
        self._detokenizer = IncrementalDetokenizer(tokenizer)
        self._stops = StopMatcher(choice.request.sampling.stop)
        self._unsent: list[tuple[int, SampledToken]] = []  # (where its text begins, token)
        self._decoded = 0  # characters made so far
        self._sent = 0  # characters given out so far
        self._generated = 0

    def push(self, output: StepOutput) -> Fragment | None:
        """The next fragment; None while all there is must be held back.

        Raises ``GenerationError`` for an output that carries a failure or a token that does not exist.
        """
        reason = output.finish_reason
        if reason in (FinishReason.ERROR, FinishReason.ABORT):
            raise GenerationError(output.error or "the request was aborted")
        text = ""
        last = len(output.tokens) - 1
        for index, token in enumerate(output.tokens):
            self._generated += 1
            if reason is FinishReason.STOP and index == last:
                break  # the end token: it counts, and it is not text
            self._unsent.append((self._decoded, token))
            try:
                decoded = self._detokenizer.push((token.token_id,))
            except InvalidRequestError as error:  # the engine's fault, not the caller's
                raise GenerationError(f"the engine gave no token of the vocabulary: {error}") from error
            self._decoded += len(decoded)
            text += self._stops.push(decoded)
            if self._stops.matched is not None:
                break
        if reason is not None and self._stops.matched is None:
            rest = self._detokenizer.finish()
            text += self._stops.push(rest) + self._stops.finish()
        if self._stops.matched is not None:
            reason = FinishReason.STOP
        self._sent += len(text)
        if not text and reason is None:
            return None
        whole = reason is not None and self._stops.matched is None
        ready = [(at, token) for at, token in self._unsent if whole or at < self._sent]
        self._unsent = self._unsent[len(ready) :]
        return Fragment(
            text,
            tuple(token for _, token in ready),
            tuple(at for at, _ in ready),
            self._generated,
            reason,
            self._index,
        )


def joined(parts: Sequence[Fragment]) -> Fragment:
    """All fragments of a choice as one."""
    return Fragment(
        "".join(part.text for part in parts),
        tuple(token for part in parts for token in part.tokens),
        tuple(at for part in parts for at in part.offsets),
        parts[-1].generated,
        parts[-1].finish_reason,
        parts[-1].index,
    )


async def fragments(
    loop: EngineLoop,
    tokenizer: Tokenizer,
    choices: Sequence[Choice],
    *,
    call: Call,
    spans: SpanLog | None,
    clock: Clock,
) -> AsyncGenerator[list[Fragment], None]:
    """Serve the choices of one call; each turn gives the fragments of all outputs that have come.

    However the reader leaves, the engine is told that every choice is over. Raises
    ``EngineStoppedError``, ``GenerationError``, or the engine's ``InvalidRequestError``.
    """
    live = {choice.request.request_id: TextStream(tokenizer, choice) for choice in choices}
    echoes = {choice.request.request_id: choice for choice in choices if choice.echo}
    mailbox = loop.submit(*(choice.request for choice in choices), arrived=call.arrived)
    call.lives = mailbox.lives
    try:
        async for outputs in mailbox:
            for start in range(0, len(outputs), MOST_AT_ONCE):
                if start:
                    await asyncio.sleep(0)  # a reader far behind must not hold up the others
                made: list[Fragment] = []
                for output in outputs[start : start + MOST_AT_ONCE]:
                    request_id = output.request_id
                    stream = live.get(request_id)
                    if stream is None:  # it ended at a stop string, and this came after
                        continue
                    if echoes and request_id in echoes:
                        choice = echoes.pop(request_id)
                        made.append(Fragment(choice.echo, (), (), 0, index=choice.index))
                    try:
                        with timed(spans, clock, request_id, Stage.DETOKENIZE):
                            fragment = stream.push(output)
                    except GenerationError:
                        if made:
                            yield made  # what came before the failure, whoever was slow to take it
                        raise
                    if fragment is None:
                        continue
                    made.append(fragment)
                    if fragment.finish_reason is not None:
                        del live[request_id]
                        if output.finish_reason is None:
                            # A stop string: not a token more while this is sent.
                            loop.abort(request_id, Outcome.STOP)
                if made:
                    yield made
            if not live:
                return
    except GenerationError:
        for request_id in live:
            loop.abort(request_id, Outcome.ERROR)
        raise
    finally:
        for request_id in live:
            loop.abort(request_id)
