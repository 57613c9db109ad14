"""Outputs to fragments, without an engine: the same text whatever comes in one output."""

import itertools

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from servelib.request import FinishReason, Request, SampledToken, SamplingParams, StepOutput
from servelib.server.stream import Choice, GenerationError, TextStream, joined
from servelib.text.tokenizer import load_tokenizer

tokenizer = load_tokenizer()


def outputs(ids, cuts, reason):
    """The ids as engine outputs, cut into several tokens each where ``cuts`` say."""
    borders = [0, *sorted({cut % len(ids) for cut in cuts} - {0}), len(ids)]
    for start, end in itertools.pairwise(borders):
        last = end == len(ids)
        tokens = tuple(SampledToken(token_id, 0.0) for token_id in ids[start:end])
        yield StepOutput("r", tokens, reason if last else None)


def fragments_of(parts, stop=()):
    stream = TextStream(tokenizer, Choice(0, Request("r", (1,), SamplingParams(stop=tuple(stop)))))
    made = []
    for part in parts:
        fragment = stream.push(part)
        if fragment is not None:
            made.append(fragment)
            if fragment.finish_reason is not None:
                break
    return made


@settings(deadline=None, derandomize=True, max_examples=300)
@given(
    st.one_of(
        st.lists(st.integers(0, 259), min_size=1, max_size=30),
        st.text("aé世👩", min_size=1, max_size=8).map(lambda text: list(text.encode())),
    ),
    st.lists(st.integers(0, 100), max_size=6),
    st.lists(st.text("aé世👩", min_size=1, max_size=2), max_size=2),
    st.sampled_from([FinishReason.STOP, FinishReason.LENGTH]),
)
def test_bursts_change_nothing(ids, cuts, stop, reason):
    one_by_one = joined(fragments_of(outputs(ids, range(len(ids)), reason), stop))
    bursts = fragments_of(outputs(ids, cuts, reason), stop)
    assert joined(bursts) == one_by_one
    assert all(fragment.text for fragment in bursts[:-1])  # only the last one may be empty
    assert [fragment.finish_reason for fragment in bursts[:-1]] == [None] * (len(bursts) - 1)
    text_ids = ids[:-1] if reason is FinishReason.STOP else ids
    whole = tokenizer.decode(text_ids)
    cut = min((whole.find(s) for s in stop if s in whole), default=None)
    assert one_by_one.text == (whole if cut is None else whole[:cut])
    if cut is None:
        assert one_by_one.generated == len(ids)
        assert [token.token_id for token in one_by_one.tokens] == text_ids
        assert one_by_one.finish_reason is reason
    else:
        assert one_by_one.finish_reason is FinishReason.STOP


def test_tokens_after_the_stop_string_in_the_same_burst_do_not_count():
    [fragment] = fragments_of(outputs(list(b"ab.cdef"), [], None), ["."])
    assert (fragment.text, fragment.generated, fragment.finish_reason) == ("ab", 3, FinishReason.STOP)


def test_a_stop_string_decided_only_by_the_end_is_a_stop():
    """``bc`` is there, but ``abcd`` began earlier and could still have come."""
    made = fragments_of(outputs(list(b"abc"), [1, 2], FinishReason.LENGTH), ["bc", "abcd"])
    assert joined(made).text == "a"
    assert made[-1].finish_reason is FinishReason.STOP


@pytest.mark.parametrize("reason", [FinishReason.ERROR, FinishReason.ABORT])
def test_a_failed_output_raises(reason):
    with pytest.raises(GenerationError):
        fragments_of([StepOutput("r", (), reason, "boom")])


def test_a_token_that_does_not_exist_is_the_engines_fault():
    with pytest.raises(GenerationError, match="99999"):
        fragments_of([StepOutput("r", (SampledToken(99999),))])
