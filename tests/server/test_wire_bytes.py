"""Chunks are written by hand; what they say is exactly what the declared models would say."""

import json

from hypothesis import given, settings
from hypothesis import strategies as st

from servelib.request import FinishReason, SampledToken
from servelib.server.replies import (
    AssistantText,
    ChatChunkChoice,
    ChatLogprobs,
    CompletionChoice,
    CompletionLogprobs,
    Envelope,
    TokenLogprob,
    TopLogprob,
    Usage,
)
from servelib.server.stream import Fragment
from servelib.server.wire import LEAST_LOGPROB, ChatFormat, CompletionFormat
from servelib.text.tokenizer import load_tokenizer

tokenizer = load_tokenizer()
# Everything that UTF-8 can hold, and often what JSON and event streams treat in a way of their own.
texts = st.text(st.characters(codec="utf-8") | st.sampled_from('"\\/\n\r\t\0\x1f\x7f\u0085\u2028\u2029{}'))
logprobs = st.floats(-1e300, 0.0) | st.just(float("-inf"))
tokens = st.builds(
    SampledToken,
    st.integers(0, 259),
    logprobs,
    st.lists(st.tuples(st.integers(0, 259), logprobs), max_size=3).map(tuple),
)
fragments = st.builds(
    lambda text, sampled, generated, reason, index: Fragment(
        text, tuple(sampled), tuple(range(len(sampled))), generated, reason, index
    ),
    texts,
    st.lists(tokens, max_size=3),
    st.integers(0, 10**6),
    st.none() | st.sampled_from([FinishReason.STOP, FinishReason.LENGTH]),
    st.integers(0, 127),
)
heads = st.fixed_dictionaries(
    {
        "request_id": texts,
        "created": st.integers(0, 2**40),
        "model": texts,
        "prompt_tokens": st.integers(0, 10**6),
    }
)
switches = st.fixed_dictionaries({"logprobs": st.booleans(), "include_usage": st.booleans()})


def finite(logprob):
    return max(logprob, LEAST_LOGPROB)


def columns(fragment):
    spell = tokenizer.token_text
    return CompletionLogprobs(
        tokens=[spell(token.token_id) for token in fragment.tokens],
        token_logprobs=[finite(token.logprob) for token in fragment.tokens],
        top_logprobs=[
            {spell(id_): finite(p) for id_, p in (*token.top, (token.token_id, token.logprob))}
            for token in fragment.tokens
        ],
        text_offset=list(fragment.offsets),
    )


def content(fragment):
    def spelled(token_id, logprob):
        raw = list(tokenizer.token_bytes(token_id)) or None
        return {"token": tokenizer.token_text(token_id), "logprob": finite(logprob), "bytes": raw}

    return ChatLogprobs(
        content=[
            TokenLogprob(
                **spelled(token.token_id, token.logprob),
                top_logprobs=[TopLogprob(**spelled(*shown)) for shown in token.top],
            )
            for token in fragment.tokens
        ]
    )


def parsed(raw):
    """The chunks of some events; none may hold a line break, which would end it early."""
    *lines, rest = raw.split(b"\n\n")
    assert rest == b""
    assert not any(b"\n" in line or b"\r" in line for line in lines)
    return [json.loads(line.removeprefix(b"data: ")) for line in lines]


class Model:
    """Writes chunks with the models, as the declared schema says."""

    def __init__(self, kind, name, head, include_usage):
        self.kind, self.name, self.include_usage = kind, name, include_usage
        self.head = {"id": head["request_id"], "created": head["created"], "model": head["model"]}

    def chunk(self, choices, usage=None):
        written = Envelope[self.kind](**self.head, object=self.name, choices=choices)
        if self.include_usage:
            written.usage = usage
        return json.loads(written.model_dump_json(exclude_unset=True))


def usage_of(head, generated):
    prompt = head["prompt_tokens"]
    return Usage(prompt_tokens=prompt, completion_tokens=generated, total_tokens=prompt + generated)


@settings(deadline=None, derandomize=True, max_examples=150)
@given(heads, switches, st.lists(fragments, max_size=4))
def test_completion_chunks(head, switch, parts):
    writer = CompletionFormat(tokenizer=tokenizer, **head, **switch)
    model = Model(CompletionChoice, "text_completion", head, switch["include_usage"])
    for part in parts:
        reason = part.finish_reason and part.finish_reason.value
        shown = columns(part) if switch["logprobs"] else None
        choice = CompletionChoice(index=part.index, text=part.text, logprobs=shown, finish_reason=reason)
        assert parsed(writer.events(part)) == [model.chunk([choice])]
    assert_ends(writer, model, head, 7)


@settings(deadline=None, derandomize=True, max_examples=150)
@given(heads, switches, st.lists(fragments, max_size=4))
def test_chat_chunks(head, switch, parts):
    writer = ChatFormat(tokenizer=tokenizer, **head, **switch)
    model = Model(ChatChunkChoice, "chat.completion.chunk", head, switch["include_usage"])
    begun = set()
    for part in parts:

        def chunk(delta, shown=None, reason=None, index=part.index):
            return model.chunk(
                [ChatChunkChoice(index=index, delta=delta, logprobs=shown, finish_reason=reason)]
            )

        wanted = []
        if part.index not in begun:
            begun.add(part.index)
            wanted.append(chunk(AssistantText(role="assistant", content="")))
        if part.text or (switch["logprobs"] and part.tokens):
            delta = AssistantText.model_construct({"content"}, content=part.text)
            wanted.append(chunk(delta, content(part) if switch["logprobs"] else None))
        if part.finish_reason is not None:
            wanted.append(chunk(AssistantText.model_construct(set()), reason=part.finish_reason.value))
        raw = writer.events(part)
        assert (parsed(raw) if raw else []) == wanted
    assert_ends(writer, model, head, 7)


def assert_ends(writer, model, head, generated):
    *before, done = writer.end(generated).split(b"\n\n")[:-1]
    assert done == b"data: [DONE]"
    usage = [model.chunk([], usage_of(head, generated))] if model.include_usage else []
    assert [json.loads(line.removeprefix(b"data: ")) for line in before] == usage


@settings(deadline=None, derandomize=True, max_examples=50)
@given(heads, switches, st.lists(fragments, min_size=1, max_size=4))
def test_a_whole_answer_fits_its_declared_model(head, switch, parts):
    writer = CompletionFormat(tokenizer=tokenizer, **head, **switch)
    body = Envelope[CompletionChoice].model_validate_json(writer.whole(parts), strict=True)
    assert [choice.text for choice in body.choices] == [part.text for part in parts]
    assert body.usage == usage_of(head, sum(part.generated for part in parts))
