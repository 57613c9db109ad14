"""One call to several engine requests: each choice its own, with an id and a random stream of its own."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from servelib.errors import check_int
from servelib.request import Request, SamplingParams, seed_from
from servelib.server.schema import GenerationBody, renamed_fields
from servelib.server.stream import Choice


@dataclass(frozen=True, slots=True)
class Prompt:
    """What a prompt is to the engine, and the text it was made from if it came as text."""

    ids: tuple[int, ...]
    text: str | None = None


@dataclass(frozen=True, slots=True)
class Limits:
    """What the model can hold: ids below ``vocab_size``, ``context`` tokens of prompt and answer."""

    vocab_size: int
    context: int


def choices_of(
    request_id: str,
    prompts: Sequence[Prompt],
    body: GenerationBody,
    limits: Limits,
    *,
    default_max_tokens: int | None = None,
    end_ids: tuple[int, ...] = (),
    echo: Callable[[Prompt], str] | None = None,
) -> tuple[Choice, ...]:
    """The choices of a call, prompt by prompt, refused now if the model could never serve one of them.

    The only choice has the call's id; of several, number i has ``<id>-<i>``. Without ``max_tokens`` in
    the body each may generate ``default_max_tokens``, and never more than the context has room for.
    ``echo`` spells the prompts that are to be given back; it is asked only about good ones.
    Raises ``InvalidRequestError``.
    """
    each = body.choices_each
    alone = len(prompts) * each == 1
    made: list[Choice] = []
    for prompt in prompts:
        room = max(1, limits.context - len(prompt.ids))  # a prompt that leaves no room is refused below
        most = min(default_max_tokens or room, room)
        sampling = body.sampling(default_max_tokens=most, end_ids=end_ids)
        check_int("top_k", sampling.top_k, 0, limits.vocab_size, why="the vocabulary")
        with renamed_fields(max_tokens=body.token_limit[0]):
            first = Request(request_id, prompt.ids, sampling)
            first.check_against(vocab_size=limits.vocab_size, context=limits.context)
        text = "" if echo is None else echo(prompt)
        for number in range(each):
            index = len(made)
            name = request_id if alone else f"{request_id}-{index}"
            made.append(Choice(index, Request(name, prompt.ids, _seeded(sampling, number)), text))
    return tuple(made)


def _seeded(sampling: SamplingParams, number: int) -> SamplingParams:
    """Choice 0 of a prompt has the seed that was given, so ``n`` does not change it; the others follow
    from it. Without a seed, an engine derives one from the id, which is each choice's own."""
    if sampling.seed is None or number == 0:
        return sampling
    return replace(sampling, seed=seed_from(f"{sampling.seed}-{number}"))
