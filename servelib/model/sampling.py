"""From logits to tokens: the last two lines of every decode step.

In order: penalties, bias, and the ban on early end tokens change the logits; then the likeliest is
taken (temperature 0), or temperature, ``min_p``, ``top_k`` and ``top_p`` shape a distribution and
one uniform number picks from it. Log-probabilities are those of the model's own logits, before any
of this, as OpenAI and vLLM report them.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Sequence

import torch
from torch import Tensor

from servelib.model.uniform import uniform
from servelib.request import RequestState, SampledToken


def sample(logits: Tensor, state: RequestState) -> SampledToken:
    """Choose the next token of one request. ``logits``: [V].

    Raises ``FloatingPointError`` if no likeliest token exists (a NaN or infinite logit, or every
    token banned): the request fails instead of going on with nonsense.
    """
    return sample_batch(logits[None], [state])[0]


def sample_batch(logits: Tensor, states: Sequence[RequestState]) -> list[SampledToken]:
    """Choose the next token of each request. ``logits``: [B, V], row b for ``states[b]``.

    Each row is treated as if it were alone: its token depends on no other row. Raises
    ``FloatingPointError`` as ``sample`` does.
    """
    if all(_is_plain_greedy(state) for state in states):  # the common case, and one kernel for all
        peaks, likeliest = logits.max(-1)  # [B], [B]; ties: the first index
        _check_peaks(peaks, states)
        return [SampledToken(token_id) for token_id in likeliest.tolist()]
    adjusted = logits.double()  # [B, V]; float64: no option can overflow, and sums are exact enough
    if not all(_leaves_logits_alone(state) for state in states):
        adjusted = adjusted.clone() if adjusted is logits else adjusted  # the caller's stay as they are
        for row, state in zip(adjusted, states, strict=True):
            _adjust(row, state)
    peaks, likeliest = adjusted.max(-1)  # [B], [B]
    _check_peaks(peaks, states)
    if any(state.request.sampling.temperature for state in states):
        chosen = torch.where(_column(states, "temperature", logits)[:, 0] == 0, likeliest,
                             _draw(adjusted - peaks[:, None], states))  # fmt: skip
    else:
        chosen = likeliest
    tokens = [SampledToken(token_id) for token_id in chosen.tolist()]
    for b, state in enumerate(states):
        if state.request.sampling.logprobs is not None:
            tokens[b] = _with_logprobs(logits[b], tokens[b].token_id, state.request.sampling.logprobs)
    return tokens


def _draw(shifted: Tensor, states: Sequence[RequestState]) -> Tensor:
    """One draw a row by inverse CDF. ``shifted``: [B, V], each row's largest is 0. Returns [B].

    The CDF runs in order of id, not of likelihood: then two engines whose logits differ in the last
    bit still agree, save when the number falls within that bit of a border.
    """
    temperature = _column(states, "temperature", shifted)  # [B, 1]
    # The largest is 0, so the smallest temperature gives 0 and -inf, never NaN.
    probs = (shifted / torch.where(temperature == 0, 1.0, temperature)).softmax(-1)  # [B, V]
    probs = probs * (probs >= probs.amax(-1, keepdim=True) * _column(states, "min_p", shifted))
    params = [state.request.sampling for state in states]
    if any(p.top_k or p.top_p < 1.0 for p in params):
        ordered, order = probs.sort(dim=-1, descending=True, stable=True)  # ties: the lower id first
        size = probs.shape[-1]
        top_k = shifted.new_tensor([[min(p.top_k or size, size)] for p in params])  # [B, 1]
        top_p = shifted.new_tensor([[p.top_p if p.top_p < 1.0 else math.inf] for p in params])
        within_k = torch.arange(size, device=probs.device) < top_k  # [B, V], in rank order
        ordered = ordered * within_k
        before = ordered.cumsum(-1) - ordered  # the mass of all that is likelier
        keep = within_k & (before < top_p * ordered.sum(-1, keepdim=True))
        probs = probs * torch.zeros_like(keep).scatter(-1, order, keep)
    cdf = probs.cumsum(-1)  # [B, V], not normalised: the number is scaled instead
    numbers = [[uniform(state.seed, len(state.output_ids))] for state in states]
    target = cdf.new_tensor(numbers) * cdf[:, -1:]  # [B, 1]
    return torch.searchsorted(cdf, target, right=True)[:, 0]  # a token of probability 0 is never hit


def _adjust(row: Tensor, state: RequestState) -> None:
    """Apply penalties, then bias, then the ban on early ends to ``row`` [V], in place."""
    params = state.request.sampling
    if params.repetition_penalty != 1.0:  # over prompt and output (Keskar et al. 2019, section 4.1)
        seen = _index(set(state.all_ids), row)
        values, penalty = row[seen], params.repetition_penalty
        row[seen] = torch.where(values > 0, values / penalty, values * penalty)
    if (params.presence_penalty or params.frequency_penalty) and state.output_ids:
        counts = Counter(state.output_ids)
        often = row.new_tensor(list(counts.values()))
        row[_index(counts, row)] -= params.presence_penalty + params.frequency_penalty * often
    if params.logit_bias:
        row[_index(params.logit_bias, row)] += row.new_tensor(list(params.logit_bias.values()))
    if not state.may_end and state.end_ids:
        row[_index(state.end_ids, row)] = -math.inf


def _with_logprobs(logits: Tensor, token_id: int, n: int) -> SampledToken:
    """The token with its log-probability and the ``n`` likeliest. ``logits``: [V], the model's own."""
    logprobs = logits.double().log_softmax(-1)  # [V]
    values, ids = logprobs.sort(descending=True, stable=True)
    top = tuple(zip(ids[:n].tolist(), values[:n].tolist(), strict=True))
    return SampledToken(token_id, float(logprobs[token_id]), top)


def _leaves_logits_alone(state: RequestState) -> bool:
    params = state.request.sampling
    return (
        params.repetition_penalty == 1.0
        and not params.presence_penalty
        and not params.frequency_penalty
        and not params.logit_bias
        and (state.may_end or not state.end_ids)
    )


def _is_plain_greedy(state: RequestState) -> bool:
    params = state.request.sampling
    return params.temperature == 0 and params.logprobs is None and _leaves_logits_alone(state)


def _check_peaks(peaks: Tensor, states: Sequence[RequestState]) -> None:
    # max() hands a NaN on, so the likeliest logit alone tells whether the row is sound.
    for peak, state in zip(peaks.tolist(), states, strict=True):
        if not math.isfinite(peak):
            raise FloatingPointError(
                f"request {state.request.request_id}: the likeliest logit is {peak}; must be finite "
                "(check the weights, and that the options leave a token to choose)"
            )


def _column(states: Sequence[RequestState], name: str, like: Tensor) -> Tensor:
    """One option of every request as float64, [B, 1]."""
    values = [[float(getattr(state.request.sampling, name))] for state in states]
    return torch.tensor(values, dtype=torch.float64, device=like.device)


def _index(ids: Iterable[int], like: Tensor) -> Tensor:
    return torch.tensor(list(ids), dtype=torch.long, device=like.device)
