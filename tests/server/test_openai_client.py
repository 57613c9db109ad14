"""The official client, sync and async, against both endpoints, streamed and whole."""

import asyncio

import openai
import pytest
from serving import CHAT, COMPLETION, TEXT, ids, serving


def text_of_stream(chunks, endpoint):
    chunks = list(chunks)
    choices = [chunk.choices[0] for chunk in chunks if chunk.choices]
    pieces = [choice.text if endpoint == "completions" else choice.delta.content for choice in choices]
    reasons = [choice.finish_reason for choice in choices if choice.finish_reason]
    return "".join(piece or "" for piece in pieces), reasons, chunks[-1].usage


def create(client, endpoint, **options):
    if endpoint == "completions":
        return client.completions.create(**COMPLETION, **options)
    return client.chat.completions.create(**CHAT, **options)


def whole_of(answer, endpoint):
    choice = answer.choices[0]
    text = choice.text if endpoint == "completions" else choice.message.content
    return text, [choice.finish_reason], answer.usage


both = pytest.mark.parametrize("endpoint", ["completions", "chat"])


@both
@pytest.mark.parametrize(
    ("options", "text", "reason", "generated"),
    [
        ({"max_tokens": 200}, TEXT, "stop", len(ids(TEXT))),
        ({"max_tokens": 5}, "Héll", "length", 5),
        ({"max_tokens": 2}, "H\ufffd", "length", 2),  # the budget ends inside a character
        ({"max_tokens": 200, "stop": " END"}, TEXT[: TEXT.index(" END")], "stop", None),
        ({"max_tokens": 200, "stop": ["zzz", "ö", ", "]}, "Héllo", "stop", 8),
        ({"max_tokens": 200, "stop": "H"}, "", "stop", 1),
        ({"max_tokens": 8, "stop": ", world"}, "Héllo, ", "length", 8),  # a false start, given back
        ({"max_tokens": 200, "stop": "hi"}, TEXT, "stop", len(ids(TEXT))),  # it is in the prompt only
        ({"max_tokens": 200, "extra_body": {"stop_token_ids": [ord("w")]}}, "Héllo, ", "stop", 9),
        ({"max_tokens": 200, "extra_body": {"min_tokens": 100, "ignore_eos": True}}, TEXT, "length", 200),
    ],
)
def test_the_joined_stream_is_the_whole_answer(hello, endpoint, options, text, reason, generated):
    whole = whole_of(create(hello.client, endpoint, **options), endpoint)
    streamed = text_of_stream(
        create(hello.client, endpoint, stream=True, stream_options={"include_usage": True}, **options),
        endpoint,
    )
    assert whole == streamed
    assert whole[:2] == (text, [reason])
    if generated is not None:
        assert whole[2].completion_tokens == generated
    assert whole[2].total_tokens == whole[2].prompt_tokens + whole[2].completion_tokens


@both
def test_the_async_client_streams_many_at_once(hello, endpoint):
    async def one(client):
        stream = await create(client, endpoint, max_tokens=200, stream=True)
        return [chunk async for chunk in stream]

    async def all_of_them():
        async with openai.AsyncOpenAI(base_url=f"{hello.url}/v1", api_key="none", max_retries=0) as client:
            return await asyncio.gather(*(one(client) for _ in range(12)))

    streams = asyncio.run(all_of_them())
    assert {text_of_stream(chunks, endpoint)[0] for chunks in streams} == {TEXT}
    assert len({chunks[0].id for chunks in streams}) == 12
    assert all(len({chunk.id for chunk in chunks}) == 1 for chunks in streams)


def test_defaults_are_sixteen_tokens_for_a_completion_and_the_context_for_a_chat():
    with serving([ord("x")]) as served:
        completion = served.client.completions.create(**COMPLETION)
        assert completion.usage.completion_tokens == 16
        chat = served.client.chat.completions.create(**CHAT)
        assert chat.usage.total_tokens == 2048
        assert chat.choices[0].finish_reason == "length"
        newer = served.client.chat.completions.create(**CHAT, max_completion_tokens=3)
        assert newer.choices[0].message.content == "xxx"


def test_prompts_as_text_and_as_ids_and_content_as_text_and_as_parts_are_the_same(hello):
    completions = hello.client.completions
    as_text = completions.create(model="scripted", prompt="hé")
    as_ids = completions.create(model="scripted", prompt=list("hé".encode()))
    assert as_text.usage == as_ids.usage
    assert as_text.usage.prompt_tokens == 3
    parts = [{"type": "text", "text": "h"}, {"type": "text", "text": "i"}]
    chats = [
        hello.client.chat.completions.create(
            model="scripted", messages=[{"role": "user", "content": content}]
        )
        for content in ("hi", parts)
    ]
    assert chats[0].usage == chats[1].usage


def test_a_turn_ends_at_the_end_of_turn_marker_in_a_chat_and_not_in_a_completion():
    with serving([*b"ab", 259, *b"c", 257]) as served:
        chat = served.client.chat.completions.create(**CHAT)
        assert (chat.choices[0].message.content, chat.usage.completion_tokens) == ("ab", 3)
        assert served.client.completions.create(**COMPLETION).choices[0].text == "abc"


def test_completion_logprobs_line_up_with_the_text(hello):
    choice = hello.client.completions.create(**COMPLETION, max_tokens=200, stop=" END", logprobs=1).choices[0]
    assert choice.logprobs.tokens[:4] == ["H", "bytes:\\xc3", "bytes:\\xa9", "l"]
    assert choice.logprobs.text_offset[:5] == [0, 1, 1, 2, 3]
    assert len(choice.logprobs.tokens) == len(choice.text.encode())
    assert choice.logprobs.token_logprobs == [0.0] * len(choice.logprobs.tokens)
    assert choice.logprobs.top_logprobs[0] == {"H": 0.0}
    streamed = hello.client.completions.create(
        **COMPLETION, max_tokens=200, stop=" END", logprobs=1, stream=True
    )
    gathered = [part for chunk in streamed for part in chunk.choices[0].logprobs.tokens]
    assert gathered == choice.logprobs.tokens


def test_chat_logprobs_spell_the_bytes(hello):
    options = {"max_tokens": 3, "logprobs": True, "top_logprobs": 1}
    whole = hello.client.chat.completions.create(**CHAT, **options).choices[0].logprobs.content
    assert [token.bytes for token in whole] == [[0x48], [0xC3], [0xA9]]
    assert whole[0].top_logprobs[0].token == "H"
    streamed = hello.client.chat.completions.create(**CHAT, **options, stream=True)
    held = [chunk.choices[0].logprobs for chunk in streamed]
    assert [token for logprobs in held if logprobs for token in logprobs.content] == whole


def test_models_and_errors_are_what_the_client_expects(hello):
    assert [model.id for model in hello.client.models.list()] == ["scripted"]
    assert hello.client.models.retrieve("scripted").owned_by == "servelib"
    with pytest.raises(openai.NotFoundError, match="must be 'scripted'") as missing:
        hello.client.completions.create(model="gpt-9", prompt="a")
    assert missing.value.code == "model_not_found"
    with pytest.raises(openai.BadRequestError) as bad:
        hello.client.completions.create(**COMPLETION, temperature=-1)
    assert bad.value.param == "temperature"
