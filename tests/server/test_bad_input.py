"""Whatever is sent: a 4xx that names the parameter, before any stream begins, and the server lives."""

import gzip
import json
import typing

import pytest
from serving import CHAT, COMPLETION

from servelib.server.schema import ChatBody, CompletionBody, StrictModel
from servelib.server.tokens import DetokenizeBody, TokenizeBody

NAN, INF = float("nan"), float("inf")
CONTEXT, VOCABULARY = 2048, 260
MEGABYTE = "a" * 1_000_000
LONE = "\ud800"


def said(**fields):
    return [{"role": "user", "content": "a", **fields}]


NOT_A_SWITCH = [1, 0, "true", [], {}]
NOT_AN_INTEGER = [1.5, 1.0, "5", True, [], {}, NAN, INF]
NOT_A_NUMBER = ["1", True, [], {}, NAN, INF, -INF, 10**400]
NOT_A_LIST = [5, True, {}, 1.5]

SHARED = {
    "model": [None, 5, [], {}, "", "gpt-9", LONE, MEGABYTE],
    "stream": ["yes", *NOT_A_SWITCH],
    "stream_options": [{"include_usage": True}, {}, [], "all", {"x": 1}],
    "stream_options.include_usage": ["yes", None, *NOT_A_SWITCH],
    "n": [0, -1, 129, 1000, 10**30, *NOT_AN_INTEGER],
    "max_tokens": [0, -1, CONTEXT, 10**30, *NOT_AN_INTEGER],
    "min_tokens": [-1, 5000, 10**30, *NOT_AN_INTEGER],
    "temperature": [-0.1, -1e-300, *NOT_A_NUMBER],
    "top_k": [-1, VOCABULARY + 1, 10**30, *NOT_AN_INTEGER],
    "top_p": [0, 0.0, -0.1, 1.1, *NOT_A_NUMBER],
    "min_p": [-0.1, 1.1, *NOT_A_NUMBER],
    "presence_penalty": [2.1, -2.1, *NOT_A_NUMBER],
    "frequency_penalty": [2.1, -2.1, *NOT_A_NUMBER],
    "repetition_penalty": [0, -1, 1e-320, 1e308, *NOT_A_NUMBER],
    "logit_bias": [
        *({str(VOCABULARY): 1}, {"-1": 1}, {"a": 1}, {"": 1}, {"01": 1}, {"1.5": 1}, {"٣": 1}, {"9" * 99: 1}),
        *({"1": 101}, {"1": -101}, {"1": None}),
        *({"1": bad} for bad in NOT_A_NUMBER),
        *(1, "1", [1]),
    ],
    "stop": ["", [""], ["a", ""], ["a"] * 17, [1], [None], LONE, ["a", LONE], [["a"]], *NOT_A_LIST],
    "stop_token_ids": [[VOCABULARY], [-1], [10**30], [1.5], ["1"], [True], [None], "1", *NOT_A_LIST],
    "ignore_eos": NOT_A_SWITCH,
    "seed": [2**64, -(2**63) - 1, 10**30, *NOT_AN_INTEGER],
}
COMPLETIONS = SHARED | {
    "prompt": [
        *("", [], [""], ["a", ""], [[]], [[1], []], None, "a" * CONTEXT, ["a", "a" * CONTEXT], MEGABYTE),
        *(LONE, ["a", LONE], ["a"] * 129, ["a", 1], [1, "a"], [[1], "a"], ["a", None], [None], [{}]),
        *([VOCABULARY], [-1], [1.5], [True], [10**30], [NAN], [[VOCABULARY]], [[1], [-1]], [[1, "a"]]),
        *([1] * CONTEXT, [0] * 400_000, [[[1]]], *NOT_A_LIST),
    ],
    "logprobs": [-1, 21, 10**30, *NOT_AN_INTEGER],
    "echo": NOT_A_SWITCH,
    "best_of": [0, 2, *NOT_AN_INTEGER],
    "suffix": ["x", 5, []],
}
CHATS = SHARED | {
    "messages": [
        *([], None, "hi", 5, {}, ["hi"], [None], [[]], said() * 2000, said(name="x"), said(tool_calls=[])),
        [{"role": "user", "content": "a", "content ": "b"}],
    ],
    "messages.role": [None, 5, "robot", "", "User", "tool", LONE, MEGABYTE],
    "messages.content": [None, 5, "a" * CONTEXT, LONE, MEGABYTE, {}, ["a"], [None], [[]]],
    "messages.content.type": [None, "image_url", "input_audio", 5, ""],
    "messages.content.text": [None, 5, [], LONE, "a" * CONTEXT],
    "max_completion_tokens": [0, -1, CONTEXT, 10**30, *NOT_AN_INTEGER],
    "logprobs": NOT_A_SWITCH,
    "top_logprobs": [1, 0, -1, 21, 10**30, *NOT_AN_INTEGER],
}
TOKENIZE = {
    "model": [5, [], "", "gpt-9", LONE],
    "prompt": [None, 5, [], ["a"], [1], {}, LONE],
    "messages": [[], "hi", 5, ["hi"]],
    **{  # a text may be longer than the context here: that is what its caller wants to learn
        field: [value for value in values if not isinstance(value, str) or len(value) < CONTEXT]
        for field, values in CHATS.items()
        if field.startswith("messages.")
    },
    "add_special_tokens": NOT_A_SWITCH,
    "add_generation_prompt": [True, False, *NOT_A_SWITCH],
    "return_token_strs": NOT_A_SWITCH,
}
DETOKENIZE = {
    "model": [5, [], "", "gpt-9", LONE],
    "tokens": [None, "a", [VOCABULARY], [-1], [1.5], ["1"], [True], [10**30], [0] * 2049, *NOT_A_LIST],
}
TABLES = {
    "/v1/completions": (CompletionBody, COMPLETION, COMPLETIONS),
    "/v1/chat/completions": (ChatBody, CHAT, CHATS),
    "/tokenize": (TokenizeBody, {"prompt": "hi"}, TOKENIZE),
    "/detokenize": (DetokenizeBody, {"tokens": [104]}, DETOKENIZE),
}
# What other servers have and this one refuses, by name.
ELSEWHERE = [
    *("user", "metadata", "tools", "tool_choice", "functions", "response_format", "store", "service_tier"),
    *("modalities", "parallel_tool_calls", "reasoning_effort", "guided_json", "no_such_field", ""),
]


def models_in(annotation):
    """The bodies inside a type: of ``list[ChatMessage] | None``, ``ChatMessage``."""
    if isinstance(annotation, type) and issubclass(annotation, StrictModel):
        yield annotation
    for part in typing.get_args(annotation):
        yield from models_in(part)


def fields_of(body, before=""):
    for name, field in body.model_fields.items():
        yield before + name
        for model in models_in(field.annotation):
            yield from fields_of(model, f"{before}{name}.")


@pytest.mark.parametrize("path", TABLES)
def test_the_table_covers_every_field_of_the_body(path):
    body, _, table = TABLES[path]
    assert set(fields_of(body)) == set(table)
    assert all(table.values())


def changed(good, field, value):
    """The body with a value put into a field, however deep."""
    name, *inner = field.split(".")
    if inner == ["include_usage"]:
        return good | {"stream": True, name: {inner[0]: value}}
    if len(inner) == 1:
        value = said(**{inner[0]: value})
    elif inner:
        value = said(content=[{"type": "text", "text": "a"} | {inner[1]: value}])
    if name == "messages":
        good = {key: kept for key, kept in good.items() if key != "prompt"}
    return good | {name: value}


def cases():
    for path, (_, good, table) in TABLES.items():
        for field, values in table.items():
            bodies = [changed(good, field, value) for value in values]
            yield pytest.param(path, bodies, field.split(".")[0], id=f"{path[1:]}-{field}")
        for field in ELSEWHERE:
            yield pytest.param(path, [good | {field: 1}], field, id=f"{path[1:]}-{field!r}")


@pytest.fixture(scope="module")
def before(hello):
    return answer_of(hello)


def answer_of(served):
    """A fixed greedy request's answer, all but what differs by design."""
    status, answer = served.post("/v1/completions", COMPLETION | {"temperature": 0, "max_tokens": 30})
    return status, answer["choices"], answer["usage"]


def assert_refused(served, status, answer, param):
    error = answer["error"]
    missing = error["code"] == "model_not_found"
    assert status == (404 if missing else 400), answer
    assert missing <= (param == "model")
    assert error["type"] == "invalid_request_error"
    assert error["param"] == param, error
    assert 0 < len(error["message"]) < 400
    assert "Traceback" not in error["message"]
    assert set(error) == {"message", "type", "param", "code"}
    assert not served.engine.has_work


def assert_unharmed(served, before):
    assert served.health() == 200
    assert answer_of(served) == before


@pytest.mark.parametrize(("path", "bodies", "field"), list(cases()))
def test_a_bad_field_is_named_and_a_stream_is_refused_alike(hello, before, path, bodies, field):
    for body in bodies:
        status, answer = hello.post(path, body)
        assert_refused(hello, status, answer, field)
        if path.startswith("/v1") and not field.startswith("stream"):
            assert hello.post(path, body | {"stream": True}) == (status, answer)
    assert_unharmed(hello, before)


@pytest.mark.parametrize(
    ("path", "extra", "param"),
    [
        ("/v1/chat/completions", {"max_tokens": 5, "max_completion_tokens": 5}, "max_tokens"),
        ("/v1/chat/completions", {"logprobs": True, "top_logprobs": 21}, "top_logprobs"),
        ("/v1/chat/completions", {"stream": True, "stream_options": {"x": 1}}, "stream_options"),
        (
            "/v1/chat/completions",
            {"stream": True, "stream_options": {"include_usage": 1}},
            "stream_options",
        ),
        ("/v1/completions", {"min_tokens": 6, "max_tokens": 5}, "min_tokens"),
        ("/v1/completions", {"echo": True, "logprobs": 1}, "echo"),
        ("/v1/completions", {"prompt": ["a", "b"], "n": 65}, "prompt"),
        ("/v1/completions", {"n": 3, "best_of": 2}, "best_of"),
        ("/tokenize", {"messages": said()}, "prompt"),
        ("/tokenize", {"prompt": None, "messages": said(), "add_special_tokens": True}, "add_special_tokens"),
    ],
)
def test_fields_that_do_not_fit_together_are_refused(hello, path, extra, param):
    good = TABLES[path][1]
    assert_refused(hello, *hello.post(path, good | extra), param)


@pytest.mark.parametrize("path", TABLES)
@pytest.mark.parametrize(
    ("body", "says", "param"),
    [
        (b"", "must be a JSON object", None),
        (b"{", "not JSON", None),
        (b"{'a': 1}", "not JSON", None),
        (b"{} {}", "not JSON", None),
        (b'{"model": "scripted"', "not JSON", None),
        (b"[]", "must be a JSON object", None),
        (b'"text"', "must be a JSON object", None),
        (b"null", "must be a JSON object", None),
        (b"5", "must be a JSON object", None),
        (b"NaN", "must be a JSON object", None),
        (b"\xff\xfe", "not UTF-8", None),
        ('{"model": "scripted"}'.encode("utf-16-le"), "not JSON", None),
        (b'\xef\xbb\xbf{"model": "scripted"}', "not JSON", None),
        (b"a" * 1_000_000, "not JSON", None),
        (b"[" * 100_000, "nested too deeply", None),
        (b'{"a":' * 5_000, "nested too deeply", None),
        (b'{"seed": ' + b"9" * 5_000 + b"}", "thousands of digits", None),
        (b'{"model": "scripted", "model": "scripted"}', "more than once", "model"),
        (b'{"model": "\\ud800", "model": 1}', "more than once", "model"),
        (b'{"\\ud800": 1}', "lone surrogate", None),
        (b'{"logit_bias": {"\\udfff": 1}}', "lone surrogate", None),
    ],
)
def test_a_body_that_is_no_request_is_refused_in_plain_words(hello, before, path, body, says, param):
    status, answer = hello.post(path, body)
    assert says in answer["error"]["message"]
    assert_refused(hello, status, answer, param)
    assert_unharmed(hello, before)


@pytest.mark.parametrize("path", TABLES)
def test_nesting_that_can_still_be_read_is_refused_by_the_field(hello, path):
    good = TABLES[path][1]
    field = next(name for name in good if name != "model")
    deep = json.dumps(good | {field: 0}).replace("0", "[" * 300 + "]" * 300).encode()
    assert_refused(hello, *hello.post(path, deep), field)


@pytest.mark.parametrize("path", TABLES)
@pytest.mark.parametrize("kind", ["text/plain", "application/x-www-form-urlencoded", "nonsense", ""])
def test_another_content_type_is_refused(hello, path, kind):
    body = json.dumps(TABLES[path][1]).encode()
    status, raw = hello.fetch(path, body, **{"content-type": kind})
    assert "Content-Type: application/json" in json.loads(raw)["error"]["message"]
    assert_refused(hello, status, json.loads(raw), None)


@pytest.mark.parametrize("path", TABLES)
def test_a_compressed_body_is_refused_by_that_name(hello, path):
    body = gzip.compress(json.dumps(TABLES[path][1]).encode())
    headers = {"content-type": "application/json", "content-encoding": "gzip"}
    status, raw = hello.fetch(path, body, **headers)
    assert "'gzip'" in json.loads(raw)["error"]["message"]
    assert_refused(hello, status, json.loads(raw), None)


@pytest.mark.parametrize(
    ("path", "data", "status"),
    [("/v2", None, 404), ("/", None, 404), *((path, None, 405) for path in TABLES), ("/health", b"{}", 405)],
)
def test_unknown_paths_and_methods_have_the_same_shape(hello, path, data, status):
    got, raw = hello.fetch(path, data)
    assert got == status
    assert json.loads(raw)["error"]["type"] == "invalid_request_error"


def test_exactly_the_context_is_served(hello):
    status, answer = hello.post("/v1/completions", {**COMPLETION, "prompt": "a" * (CONTEXT - 1)})
    assert status == 200
    assert answer["usage"]["total_tokens"] == CONTEXT


@pytest.mark.parametrize(
    "extreme",
    [
        {"temperature": 1e-4},
        {"temperature": 1e300},
        {"top_p": 1e-300},
        {"top_k": VOCABULARY},
        {"seed": 2**64 - 1},
        {"seed": -(2**63)},
        {"n": 128, "max_tokens": 1},
        {"n": 2, "best_of": 2, "suffix": ""},
        {"logit_bias": {str(id_): -100 for id_ in range(VOCABULARY)}},
        {"stop": ["a"] * 16},
    ],
)
def test_the_ends_of_the_ranges_are_served(hello, extreme):
    assert hello.post("/v1/completions", COMPLETION | extreme)[0] == 200


def test_null_means_the_default(hello):
    for path in ("/v1/completions", "/v1/chat/completions"):
        body, good, _ = TABLES[path]
        absent = {name: None for name, field in body.model_fields.items() if not field.is_required()}
        status, answer = hello.post(path, good | absent)
        assert (status, answer["choices"]) == (200, hello.post(path, good)[1]["choices"])
