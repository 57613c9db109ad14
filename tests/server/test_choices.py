"""Several answers to one call: numbered, seeded, counted, and gone together."""

import http.client
import json
import urllib.parse

import pytest
from lockstep import Lockstep, number_of
from serving import CHAT, COMPLETION, EOS, eventually, serving

from servelib.engine.naive import NaiveEngine
from servelib.errors import InvalidRequestError
from servelib.model.scripted import ScriptedModel
from servelib.request import seed_from
from servelib.server.choices import Limits, Prompt, choices_of
from servelib.server.run import BackgroundServer
from servelib.server.schema import CompletionBody

LIMITS = Limits(260, 2048)


def numbered(state):
    """Choice i says i, i + 1 times, and ends."""
    number = number_of(state.request.request_id)
    return ord("0") + number if len(state.output_ids) <= number else EOS


def choices(n=None, seed=None, prompts=1):
    body = CompletionBody(model="m", prompt="a", n=n, seed=seed)
    return choices_of("id", [Prompt((1,))] * prompts, body, LIMITS, default_max_tokens=16)


def test_ids_and_places():
    assert [c.request.request_id for c in choices()] == ["id"]
    assert [(c.index, c.request.request_id) for c in choices(n=2, prompts=2)] == [
        *((0, "id-0"), (1, "id-1"), (2, "id-2"), (3, "id-3")),
    ]


def test_choice_zero_has_the_seed_that_was_given_and_the_others_follow_from_it():
    assert [c.request.sampling.seed for c in choices(seed=7)] == [7]
    of_two_prompts = [c.request.sampling.seed for c in choices(seed=7, n=3, prompts=2)]
    assert of_two_prompts == [7, seed_from("7-1"), seed_from("7-2")] * 2
    assert len({*of_two_prompts, *(c.request.sampling.seed for c in choices(seed=8, n=3))}) == 6


def test_without_a_seed_each_choice_takes_its_own_from_its_id():
    assert [c.request.sampling.seed for c in choices(n=2)] == [None, None]


def test_each_prompt_has_its_own_room_and_one_that_does_not_fit_refuses_all():
    body = CompletionBody(model="m", prompt="a")
    made = choices_of("id", [Prompt((1,) * 2040), Prompt((1,))], body, LIMITS, default_max_tokens=16)
    assert [c.request.sampling.max_tokens for c in made] == [8, 16]
    with pytest.raises(InvalidRequestError, match="2048 tokens"):
        choices_of("id", [Prompt((1,)), Prompt((1,) * 2048)], body, LIMITS)


@pytest.fixture(scope="module", params=[1, 3])
def lockstep(request):
    with BackgroundServer(Lockstep(numbered, burst=request.param), model_id="scripted") as server:
        yield server


def post(server, path, body):
    connection = http.client.HTTPConnection(urllib.parse.urlsplit(server.url).netloc, timeout=30)
    connection.request("POST", path, json.dumps(body), {"content-type": "application/json"})
    answer = connection.getresponse()
    raw = answer.read()
    connection.close()
    return answer.status, raw


def events(raw):
    lines = raw.decode().split("\n\n")[:-1]
    assert lines.count("data: [DONE]") == 1
    assert lines[-1] == "data: [DONE]"
    return [json.loads(line[6:]) for line in lines[:-1]]


@pytest.mark.parametrize("path", ["/v1/completions", "/v1/chat/completions"])
def test_choices_whole_and_streamed(lockstep, path):
    body = (COMPLETION if path == "/v1/completions" else CHAT) | {"n": 4}
    whole = json.loads(post(lockstep, path, body)[1])
    texts = [
        choice["text"] if "text" in choice else choice["message"]["content"] for choice in whole["choices"]
    ]
    assert texts == ["0", "11", "222", "3333"]
    assert [choice["index"] for choice in whole["choices"]] == [0, 1, 2, 3]
    assert whole["usage"]["completion_tokens"] == 2 + 3 + 4 + 5
    # The prompt is computed for each of them, and counted once, as OpenAI does.
    alone = json.loads(post(lockstep, path, body | {"n": 1})[1])
    assert whole["usage"]["prompt_tokens"] == alone["usage"]["prompt_tokens"]

    streamed = events(
        post(lockstep, path, body | {"stream": True, "stream_options": {"include_usage": True}})[1]
    )
    *chunks, usage = streamed
    assert (usage["choices"], usage["usage"]) == ([], whole["usage"])
    assert all(chunk["usage"] is None and len(chunk["choices"]) == 1 for chunk in chunks)
    assert len({chunk["id"] for chunk in streamed}) == 1
    gathered, reasons, order = ["", "", "", ""], {}, []
    for chunk in chunks:
        [choice] = chunk["choices"]
        order.append(choice["index"])
        assert choice["index"] not in reasons  # nothing comes after a choice's end
        gathered[choice["index"]] += (
            choice["text"] if "text" in choice else choice["delta"].get("content", "")
        )
        if choice["finish_reason"] is not None:
            reasons[choice["index"]] = choice["finish_reason"]
    assert gathered == texts
    assert reasons == dict.fromkeys(range(4), "stop")
    assert order != sorted(order)  # interleaved: none waits for another


def test_prompts_come_prompt_by_prompt(lockstep):
    body = {"model": "scripted", "prompt": ["aé", "b"], "n": 2, "echo": True}
    answer = json.loads(post(lockstep, "/v1/completions", body)[1])
    assert [choice["text"] for choice in answer["choices"]] == ["aé0", "aé11", "b222", "b3333"]
    assert answer["usage"]["prompt_tokens"] == 3 + 1
    as_ids = body | {"prompt": [list("aé".encode()), [ord("b")]]}
    again = json.loads(post(lockstep, "/v1/completions", as_ids)[1])
    assert again["choices"] == answer["choices"]


def test_an_echo_is_the_first_event_of_its_choice(lockstep):
    body = COMPLETION | {"prompt": "hé 3", "n": 2, "echo": True, "stream": True, "stop": "3"}
    first = {}
    for chunk in events(post(lockstep, "/v1/completions", body)[1]):
        [choice] = chunk["choices"]
        first.setdefault(choice["index"], choice["text"])
    assert first == {0: "hé 3", 1: "hé 3"}  # and a stop string is not looked for in it


def test_a_stop_string_ends_its_choice_alone_and_its_work_in_the_engine():
    def endless(state):
        return ord("0") + number_of(state.request.request_id)

    engine = Lockstep(endless)
    with BackgroundServer(engine, model_id="scripted") as server:
        body = COMPLETION | {"n": 3, "stop": ["00", "1111"], "max_tokens": 9}
        answer = json.loads(post(server, "/v1/completions", body)[1])
        assert [choice["text"] for choice in answer["choices"]] == ["", "", "2" * 9]
        assert [choice["finish_reason"] for choice in answer["choices"]] == ["stop", "stop", "length"]
        assert answer["usage"]["completion_tokens"] == 2 + 4 + 9
        assert eventually(lambda: not engine.live)


@pytest.mark.parametrize("stream", [True, False])
def test_a_caller_who_leaves_ends_all_of_its_choices(stream):
    def endless(state):
        state.output_ids.clear()  # so that the budget is never used up
        return ord("a")

    engine = Lockstep(endless)
    with BackgroundServer(engine, model_id="scripted") as server:
        connection = http.client.HTTPConnection(urllib.parse.urlsplit(server.url).netloc, timeout=30)
        body = COMPLETION | {"n": 5, "max_tokens": 2000, "stream": stream}
        connection.request("POST", "/v1/completions", json.dumps(body), {"content-type": "application/json"})
        assert eventually(lambda: len(engine.live) == 5)
        connection.close()
        assert eventually(lambda: not engine.live)


class Picky(NaiveEngine):
    """Takes two requests of a call and refuses the third."""

    def add_request(self, request):
        if request.request_id.endswith("-2"):
            raise InvalidRequestError("n", 3, "2 here")
        super().add_request(request)


@pytest.mark.parametrize("stream", [True, False])
def test_a_choice_that_the_engine_refuses_takes_the_others_along_before_any_header(stream):
    engine = Picky(ScriptedModel([ord("a")]), use_cache=True)
    with BackgroundServer(engine, model_id="scripted") as server:
        status, raw = post(server, "/v1/completions", COMPLETION | {"n": 3, "stream": stream})
        assert status == 400
        assert json.loads(raw)["error"]["param"] == "n"
        assert not engine.has_work
        assert engine.model.calls == []
        assert post(server, "/v1/completions", COMPLETION)[0] == 200


def test_a_choice_that_fails_ends_the_call_with_what_came_before_it():
    def script(state):
        if number_of(state.request.request_id) == 1 and len(state.output_ids) == 1:
            raise RuntimeError("secret detail")
        return ord("a")

    with serving(script) as served:
        body = COMPLETION | {"n": 2, "max_tokens": 3}
        assert served.post("/v1/completions", body)[0] == 500
        assert eventually(lambda: not served.engine.has_work)
        _, raw = served.fetch("/v1/completions", json.dumps(body | {"stream": True}).encode())
        *chunks, error = [json.loads(line[6:]) for line in raw.decode().split("\n\n")[:-1]]
        texts = [(c["choices"][0]["index"], c["choices"][0]["text"]) for c in chunks]
        assert texts == [(0, "a"), (0, "a"), (0, "a"), (1, "a")]
        assert error["error"]["type"] == "server_error"
