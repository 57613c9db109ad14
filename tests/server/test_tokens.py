"""``/tokenize`` tells what a generation endpoint would compute; ``/detokenize`` undoes it."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from serving import CHAT, COMPLETION

from servelib.text.tokenizer import load_tokenizer


def post(served, path, **body):
    status, answer = served.post(path, body)
    assert status == 200, answer
    return answer


def test_a_prompt(hello):
    assert post(hello, "/tokenize", prompt="hé") == {
        "count": 3,
        "max_model_len": 2048,
        "tokens": [0x68, 0xC3, 0xA9],
        "token_strs": None,
    }
    assert post(hello, "/tokenize", prompt="", model="scripted")["tokens"] == []


def test_tokens_are_spelled_and_the_begin_token_is_added_when_asked(hello):
    answer = post(hello, "/tokenize", prompt="é<|eos|>", add_special_tokens=True, return_token_strs=True)
    # What is typed is text, even where it spells a special token.
    assert answer["tokens"] == [256, *"é<|eos|>".encode()]
    assert answer["token_strs"] == ["<|bos|>", "bytes:\\xc3", "bytes:\\xa9", *"<|eos|>"]
    assert answer["count"] == len(answer["tokens"]) == len(answer["token_strs"])


@pytest.mark.parametrize("text", ["hi", "", "héllo 👩‍👩‍👧", "<|turn|>assistant\n"])
def test_the_counts_are_those_of_the_endpoints(hello, text):
    messages = [{"role": "user", "content": text}]
    chat = hello.post("/v1/chat/completions", CHAT | {"messages": messages})[1]
    assert post(hello, "/tokenize", messages=messages)["count"] == chat["usage"]["prompt_tokens"]
    if text:
        completion = hello.post("/v1/completions", COMPLETION | {"prompt": text})[1]
        assert post(hello, "/tokenize", prompt=text)["count"] == completion["usage"]["prompt_tokens"]


def test_the_assistants_turn_is_opened_unless_told_not_to(hello):
    messages = CHAT["messages"]
    opened = post(hello, "/tokenize", messages=messages)["tokens"]
    closed = post(hello, "/tokenize", messages=messages, add_generation_prompt=False)["tokens"]
    assert opened == [*closed, 258, *b"assistant\n"]
    assert opened[0] == 256


def test_a_text_longer_than_the_context_is_counted(hello):
    answer = post(hello, "/tokenize", prompt="a" * 5000)
    assert answer["count"] == 5000 > answer["max_model_len"]


@settings(deadline=None, derandomize=True, max_examples=60)
@given(st.text(max_size=40))
def test_a_text_comes_back(hello, text):
    ids = post(hello, "/tokenize", prompt=text)["tokens"]
    assert post(hello, "/detokenize", tokens=ids) == {"prompt": text}


@settings(deadline=None, derandomize=True, max_examples=60)
@given(st.lists(st.integers(0, 259), max_size=40))
def test_any_tokens_have_a_text(hello, ids):
    assert post(hello, "/detokenize", tokens=ids) == {"prompt": load_tokenizer().decode(ids)}
