"""The nouns of serving: a request, how to sample it, its state, and what one step gives back.

Every engine, the server, the harness and the simulator speak in these types. Nothing here computes,
and nothing is encoded in a sign or a sentinel number: a status is an enum, an absent value is None.
"""

from __future__ import annotations

import enum
import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from servelib.errors import InvalidRequestError, check_float, check_int


class FinishReason(enum.Enum):
    """Why a request ended. The values of the first two are OpenAI's."""

    STOP = "stop"  # an end token, a stop token, or a stop string
    LENGTH = "length"  # its token budget
    ABORT = "abort"  # the caller left
    ERROR = "error"  # the engine failed on it


class RequestStatus(enum.Enum):
    """Where a request is in its life."""

    WAITING = "waiting"  # queued: nothing computed, nothing held
    RUNNING = "running"  # chosen: prefilling or decoding
    FINISHED = "finished"  # ended, whatever the reason; never leaves this state


MAX_LOGPROBS = 20


@dataclass(frozen=True, slots=True)
class SamplingParams:
    """How to choose each token and when to stop. Defaults are greedy, 16 tokens.

    ``temperature`` 0 is greedy, ties to the lowest id. ``top_k`` 0 keeps every token. ``seed`` None
    derives the seed from the request id. ``stop`` holds strings and is matched where text is made
    (``servelib.text.stops``); engines see tokens only and act on ``stop_token_ids``. ``logprobs``
    None returns none; n >= 0 returns the chosen token's log-probability and the n likeliest.

    Raises ``InvalidRequestError`` on a value out of range.
    """

    max_tokens: int = 16
    min_tokens: int = 0
    temperature: float = 0.0
    top_k: int = 0
    top_p: float = 1.0
    min_p: float = 0.0
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    repetition_penalty: float = 1.0
    logit_bias: Mapping[int, float] = field(default_factory=dict)
    logprobs: int | None = None
    stop: tuple[str, ...] = ()
    stop_token_ids: tuple[int, ...] = ()
    ignore_eos: bool = False
    seed: int | None = None

    def __post_init__(self) -> None:
        check_int("max_tokens", self.max_tokens, 1)
        check_int("min_tokens", self.min_tokens, 0, self.max_tokens, why="max_tokens")
        check_float("temperature", self.temperature, 0.0)
        check_int("top_k", self.top_k, 0)
        check_float("top_p", self.top_p, 0.0, 1.0, low_open=True)
        check_float("min_p", self.min_p, 0.0, 1.0)
        check_float("presence_penalty", self.presence_penalty, -2.0, 2.0)
        check_float("frequency_penalty", self.frequency_penalty, -2.0, 2.0)
        check_float("repetition_penalty", self.repetition_penalty, 1e-3, 1e3)  # no logit can overflow
        if not isinstance(self.logit_bias, Mapping):
            raise InvalidRequestError("logit_bias", self.logit_bias, "a mapping of token id to bias")
        for token_id, bias in self.logit_bias.items():
            check_int("logit_bias", token_id, 0)
            check_float("logit_bias", bias, -100.0, 100.0)
        if self.logprobs is not None:
            check_int("logprobs", self.logprobs, 0, MAX_LOGPROBS)
        if not isinstance(self.stop, tuple):
            raise InvalidRequestError("stop", self.stop, "a tuple of strings")
        for text in self.stop:
            if not isinstance(text, str) or not text:
                raise InvalidRequestError("stop", text, "a non-empty string")
        if not isinstance(self.stop_token_ids, tuple):
            raise InvalidRequestError("stop_token_ids", self.stop_token_ids, "a tuple of token ids")
        for token_id in self.stop_token_ids:
            check_int("stop_token_ids", token_id, 0)
        if not isinstance(self.ignore_eos, bool):
            raise InvalidRequestError("ignore_eos", self.ignore_eos, "True or False")
        if self.seed is not None:
            check_int("seed", self.seed, -(2**63), 2**64 - 1)


@dataclass(frozen=True, slots=True)
class Request:
    """One request as the engine sees it: an id unique among live requests, token ids, parameters."""

    request_id: str
    prompt_ids: tuple[int, ...]
    sampling: SamplingParams = field(default_factory=SamplingParams)

    def __post_init__(self) -> None:
        if not isinstance(self.request_id, str) or not self.request_id:
            raise InvalidRequestError("request_id", self.request_id, "a non-empty string")
        if not isinstance(self.prompt_ids, tuple):
            raise InvalidRequestError("prompt", self.prompt_ids, "a tuple of token ids")
        if not self.prompt_ids:
            raise InvalidRequestError("prompt", self.prompt_ids, "at least one token")

    def check_against(self, *, vocab_size: int, context: int) -> None:
        """Refuse what this model can never serve: ids outside the vocabulary, or too long.

        Raises ``InvalidRequestError``.
        """
        sampling = self.sampling
        room = context - len(self.prompt_ids)
        if room < 1:
            limit = f"at most {context - 1} tokens: the context is {context} and one must be generated"
            raise InvalidRequestError("prompt", f"{len(self.prompt_ids)} tokens", limit)
        if sampling.max_tokens > room:
            limit = f"at most {room}: the context is {context} and the prompt has {len(self.prompt_ids)}"
            raise InvalidRequestError("max_tokens", sampling.max_tokens, limit)
        # After the lengths: a prompt a million tokens long is refused without reading it.
        for name, ids in (
            ("prompt", self.prompt_ids),
            ("stop_token_ids", sampling.stop_token_ids),
            ("logit_bias", sampling.logit_bias),
        ):
            if ids and set(map(type, ids)) == {int} and min(ids) >= 0 and max(ids) < vocab_size:
                continue  # nearly always, and without a call for each token
            for token_id in ids:
                check_int(name, token_id, 0, vocab_size - 1, why="the vocabulary")
        # The end token is one more that min_tokens bans, and one must be left to choose.
        ends = len(set(sampling.stop_token_ids))
        if sampling.min_tokens and ends and ends >= vocab_size - 1:
            limit = f"fewer than {vocab_size - 1} different ids while min_tokens is above 0"
            raise InvalidRequestError("stop_token_ids", f"{ends} ids", limit)


@dataclass(frozen=True, slots=True)
class SampledToken:
    """One chosen token. ``logprob`` and ``top`` (likeliest first) only when they were asked for."""

    token_id: int
    logprob: float | None = None
    top: tuple[tuple[int, float], ...] = ()


@dataclass(frozen=True, slots=True)
class StepOutput:
    """What one engine step gives one request.

    ``tokens`` has one entry for plain decoding, several after speculation, none for a request that
    ended without a token (aborted, failed). ``finish_reason`` is set on the last output only.
    ``error`` says what went wrong when the reason is ERROR.
    """

    request_id: str
    tokens: tuple[SampledToken, ...]
    finish_reason: FinishReason | None = None
    error: str | None = None

    @property
    def token_ids(self) -> tuple[int, ...]:
        """The ids alone, in order."""
        return tuple(token.token_id for token in self.tokens)


@dataclass(slots=True, eq=False)  # two states are the same only if they are one
class RequestState:
    """A request inside an engine: what it has produced and whether it is over.

    ``computed`` counts the tokens, from the first, whose keys and values its cache holds. ``seed`` is
    the request's own: two requests never share a random stream, so neither can change
    the other's tokens. ``end_ids`` are the token ids that end it.
    """

    request: Request
    eos_id: int | tuple[int, ...] | None = None
    status: RequestStatus = RequestStatus.WAITING
    output_ids: list[int] = field(default_factory=list)
    computed: int = 0
    finish_reason: FinishReason | None = None
    seed: int = field(init=False)
    end_ids: frozenset[int] = field(init=False)

    def __post_init__(self) -> None:
        given = self.request.sampling.seed
        self.seed = seed_from(self.request.request_id) if given is None else given % 2**64
        sampling = self.request.sampling
        ends = set(sampling.stop_token_ids)
        if self.eos_id is not None and not sampling.ignore_eos:
            ends |= {self.eos_id} if isinstance(self.eos_id, int) else set(self.eos_id)
        self.end_ids = frozenset(ends)

    @property
    def all_ids(self) -> list[int]:
        """Prompt and output, in order: the sequence the model continues."""
        return [*self.request.prompt_ids, *self.output_ids]

    @property
    def length(self) -> int:
        """Prompt and output tokens so far."""
        return len(self.request.prompt_ids) + len(self.output_ids)

    @property
    def pending_ids(self) -> Sequence[int]:
        """The tokens that have not run yet: a prompt, the rest of one, or the newest token alone."""
        past = self.computed - len(self.request.prompt_ids)
        return self.output_ids[past:] if past >= 0 else self.all_ids[self.computed :]

    @property
    def may_end(self) -> bool:
        """Whether the next token is allowed to be an end token (``min_tokens``)."""
        return len(self.output_ids) >= self.request.sampling.min_tokens

    def append(self, token_id: int) -> FinishReason | None:
        """Take the next token; return why the request ends, or None if it goes on.

        The end token itself is kept: it was computed, and it counts.
        """
        if self.status is RequestStatus.FINISHED:
            raise RuntimeError(f"request {self.request.request_id} is finished and cannot grow")
        may_end = self.may_end
        self.output_ids.append(token_id)
        if may_end and token_id in self.end_ids:
            self.finish(FinishReason.STOP)
        elif len(self.output_ids) >= self.request.sampling.max_tokens:
            self.finish(FinishReason.LENGTH)
        return self.finish_reason

    def finish(self, reason: FinishReason) -> None:
        """End the request. The first reason wins."""
        if self.status is not RequestStatus.FINISHED:
            self.status = RequestStatus.FINISHED
            self.finish_reason = reason


def seed_from(label: str) -> int:
    """A 64-bit seed that depends on the label alone, the same in every process."""
    return int.from_bytes(hashlib.sha256(label.encode(errors="surrogatepass")).digest()[:8], "big")
