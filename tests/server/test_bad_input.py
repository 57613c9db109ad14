"""Whatever is sent: a 4xx that names the parameter, before any stream begins, and the server lives."""

import json

import pytest
from serving import CHAT, COMPLETION

NAN = float("nan")
BIG = 2048

shared = [
    ("max_tokens", 0),
    ("max_tokens", -1),
    ("max_tokens", 1.5),
    ("max_tokens", "5"),
    ("max_tokens", True),
    ("max_tokens", BIG),
    ("max_tokens", 10**30),
    ("min_tokens", -1),
    ("min_tokens", 5000),
    ("temperature", NAN),
    ("temperature", float("inf")),
    ("temperature", -0.1),
    ("temperature", "hot"),
    ("temperature", 10**400),
    ("top_p", 0),
    ("top_p", 1.1),
    ("top_p", NAN),
    ("top_k", -1),
    ("top_k", 1.5),
    ("min_p", -0.1),
    ("min_p", 2),
    ("presence_penalty", 2.1),
    ("frequency_penalty", -2.1),
    ("repetition_penalty", 0),
    ("repetition_penalty", 1e-320),
    ("repetition_penalty", 1e308),
    ("logit_bias", {"260": 1}),
    ("logit_bias", {"-1": 1}),
    ("logit_bias", {"a": 1}),
    ("logit_bias", {"1": 101}),
    ("logit_bias", {"1": NAN}),
    ("logit_bias", [1]),
    ("seed", 2**64),
    ("seed", -(2**63) - 1),
    ("seed", 0.5),
    ("stop", ""),
    ("stop", ["a", ""]),
    ("stop", [1]),
    ("stop", ["a"] * 17),
    ("stop", "\ud800"),
    ("stop_token_ids", [260]),
    ("stop_token_ids", [-1]),
    ("stop_token_ids", 5),
    ("ignore_eos", 1),
    ("n", 0),
    ("n", 1000),
    ("stream", "yes"),
    ("stream_options", {"include_usage": True}),
    ("model", None),
    ("model", 5),
    ("user", "me"),
    ("best_of", 2),
    ("no_such_field", 1),
]
completion = [
    ("prompt", ""),
    ("prompt", []),
    ("prompt", [""]),
    ("prompt", None),
    ("prompt", 5),
    ("prompt", [260]),
    ("prompt", [-1]),
    ("prompt", [1.5]),
    ("prompt", [True]),
    ("prompt", [10**30]),
    ("prompt", "a" * BIG),
    ("prompt", "a" * 1_000_000),
    ("prompt", "\ud800"),
    ("logprobs", 21),
    ("logprobs", -1),
    ("logprobs", True),
    ("suffix", "x"),
]
chat = [
    ("messages", []),
    ("messages", None),
    ("messages", "hi"),
    ("messages", ["hi"]),
    ("messages", [{"role": "user"}]),
    ("messages", [{"role": "robot", "content": "a"}]),
    ("messages", [{"role": "user", "content": None}]),
    ("messages", [{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "x"}}]}]),
    ("messages", [{"role": "user", "content": "a", "name": "x"}]),
    ("messages", [{"role": "user", "content": "a" * BIG}]),
    ("messages", [{"role": "user", "content": "\ud800"}]),
    ("max_completion_tokens", 0),
    ("max_completion_tokens", BIG),
    ("logprobs", 1),
    ("top_logprobs", 1),
    ("tools", []),
    ("response_format", {"type": "json_object"}),
]


def cases():
    for field, value in shared + completion:
        yield pytest.param(
            "/v1/completions", COMPLETION, field, value, id=f"completion-{field}-{value!r:.24}"
        )
    for field, value in shared + chat:
        yield pytest.param("/v1/chat/completions", CHAT, field, value, id=f"chat-{field}-{value!r:.24}")


def assert_refused(served, status, answer, param):
    error = answer["error"]
    assert status == 400, answer
    assert error["type"] == "invalid_request_error"
    assert error["param"] == param, error
    assert error["message"]
    assert "Traceback" not in error["message"]
    assert set(error) == {"message", "type", "param", "code"}
    assert not served.engine.has_work
    assert served.health() == 200


@pytest.mark.parametrize(("path", "good", "field", "value"), list(cases()))
def test_a_bad_field_is_named(hello, path, good, field, value):
    assert_refused(hello, *hello.post(path, {**good, field: value}), field)


@pytest.mark.parametrize(
    ("extra", "param"),
    [
        ({"max_tokens": 5, "max_completion_tokens": 5}, "max_tokens"),
        ({"logprobs": True, "top_logprobs": 21}, "top_logprobs"),
        ({"stream": True, "stream_options": {"x": 1}}, "stream_options"),
        ({"stream": True, "temperature": -1}, "temperature"),
        ({"stream": True, "max_tokens": BIG}, "max_tokens"),
    ],
)
def test_fields_that_do_not_fit_together_and_bad_streams_are_refused_alike(hello, extra, param):
    assert_refused(hello, *hello.post("/v1/chat/completions", {**CHAT, **extra}), param)


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"{",
        b"[]",
        b'"text"',
        b"null",
        b"5",
        b"\xff\xfe",
        b"[" * 100_000,
        b'{"a":' * 5_000,
        b'{"\\ud800": 1}',
    ],
)
def test_a_body_that_is_no_request_is_refused(hello, body):
    assert_refused(hello, *hello.post("/v1/completions", body), None)


def test_another_content_type_is_refused(hello):
    body = json.dumps(COMPLETION).encode()
    status, raw = hello.fetch("/v1/completions", body, **{"content-type": "text/plain"})
    assert_refused(hello, status, json.loads(raw), None)


@pytest.mark.parametrize(("path", "data", "status"), [("/v2", None, 404), ("/v1/completions", None, 405)])
def test_unknown_paths_and_methods_have_the_same_shape(hello, path, data, status):
    got, raw = hello.fetch(path, data)
    assert got == status
    assert json.loads(raw)["error"]["type"] == "invalid_request_error"


def test_exactly_the_context_is_served(hello):
    status, answer = hello.post("/v1/completions", {**COMPLETION, "prompt": "a" * (BIG - 1)})
    assert status == 200
    assert answer["usage"]["total_tokens"] == BIG


def test_null_means_the_default(hello):
    fields = ["max_tokens", "temperature", "top_p", "stop", "seed", "logit_bias", "n", "stream", "logprobs"]
    status, answer = hello.post("/v1/completions", {**COMPLETION, **dict.fromkeys(fields)})
    assert status == 200
    assert answer["usage"]["completion_tokens"] == 16
