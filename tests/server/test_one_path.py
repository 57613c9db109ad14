"""For any request: joined stream = whole answer = the engine's own tokens decoded and cut."""

import http.client
import json
import urllib.parse

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from lockstep import Lockstep, number_of

from servelib.server.run import BackgroundServer
from servelib.text.tokenizer import load_tokenizer

tokenizer = load_tokenizer()
EOS, END_OF_TURN = 257, 259

pieces = st.sampled_from(["a", "b", "ab", "é", "世", "👩‍👩‍👧", "e\u0301", " ", "\n\n"])
scripts = st.lists(
    st.one_of(
        pieces.map(lambda text: list(text.encode())),
        st.integers(0, 259).map(lambda id_: [id_]),  # any token: half a character, a special, an end
    ),
    max_size=10,
).map(lambda parts: [id_ for part in parts for id_ in part])
calls = st.fixed_dictionaries(
    {
        "n": st.integers(1, 3),
        "max_tokens": st.integers(1, 24),
        "stop": st.lists(st.sampled_from(["a", "ab", "bab", "é", "世", "\ufffd", "👩", "\n"]), max_size=2),
    },
    optional={
        "ignore_eos": st.booleans(),
        "min_tokens": st.just(1),
        "stop_token_ids": st.lists(st.integers(0, 259), max_size=2),
        "echo": st.booleans(),
        "logprobs": st.integers(0, 2),
    },
)


class Script:
    """What the choices of the next call will say: one list of tokens each, the end token after it."""

    def __init__(self):
        self.lists = []

    def __call__(self, state):
        tokens = self.lists[number_of(state.request.request_id)]
        done = len(state.output_ids)
        return tokens[done] if done < len(tokens) else EOS


@pytest.fixture(scope="module", params=[1, 3], ids=["tokens", "bursts"])
def server(request):
    script = Script()
    with BackgroundServer(Lockstep(script, burst=request.param), model_id="scripted") as running:
        connection = http.client.HTTPConnection(urllib.parse.urlsplit(running.url).netloc, timeout=30)
        yield script, connection
        connection.close()


def post(connection, path, body):
    connection.request("POST", path, json.dumps(body), {"content-type": "application/json"})
    answer = connection.getresponse()
    raw = answer.read()
    assert answer.status == 200, raw
    return raw


def of_whole(raw):
    answer = json.loads(raw)
    texts = [c["text"] if "text" in c else c["message"]["content"] for c in answer["choices"]]
    return texts, [c["finish_reason"] for c in answer["choices"]], answer["usage"]


def of_stream(raw, n):
    *lines, done, rest = raw.decode().split("\n\n")
    assert (done, rest) == ("data: [DONE]", "")
    *chunks, last = [json.loads(line.removeprefix("data: ")) for line in lines]
    assert last["choices"] == []
    texts, reasons = [""] * n, [[] for _ in range(n)]
    for chunk in chunks:
        [choice] = chunk["choices"]
        assert not reasons[choice["index"]]
        new = choice["text"] if "text" in choice else choice["delta"].get("content", "")
        texts[choice["index"]] += new
        reasons[choice["index"]] += [choice["finish_reason"]] * (choice["finish_reason"] is not None)
    return texts, [reason for [reason] in reasons], last["usage"]


def expected(tokens, call, chat):
    """Text and reason of one choice, from the definition alone."""
    ends = set(call.get("stop_token_ids", []))
    if not call.get("ignore_eos"):
        ends |= {EOS, END_OF_TURN} if chat else {EOS}
    spoken, reason = [], "length"
    for done, token in enumerate([*tokens, *[EOS] * call["max_tokens"]][: call["max_tokens"]]):
        if token in ends and done >= call.get("min_tokens", 0):
            reason = "stop"
            break
        spoken.append(token)
    text = tokenizer.decode(spoken)
    found = [text.find(stop) for stop in call["stop"] if stop in text]
    return (text[: min(found)], "stop", None) if found else (text, reason, len(spoken) + (reason == "stop"))


@pytest.mark.parametrize("chat", [False, True], ids=["completion", "chat"])
def test_stream_whole_and_the_engines_own_text_are_one(server, chat):
    script, connection = server

    @settings(deadline=None, derandomize=True, max_examples=70)
    @given(st.lists(scripts, min_size=3, max_size=3), calls)
    def check(lists, call):
        script.lists = lists
        call = dict(call)
        if chat:
            path, body = "/v1/chat/completions", {"messages": [{"role": "user", "content": "ab é"}]}
            call.pop("echo", None)
            if call.pop("logprobs", None) is not None:
                body["logprobs"] = True
        else:
            path, body = "/v1/completions", {"prompt": "ab é"}
            if call.get("echo"):
                call.pop("logprobs", None)
        if "min_tokens" in call and len(call.get("stop_token_ids", [])) > 200:
            call.pop("min_tokens")
        body |= {"model": "scripted", **call}
        whole = of_whole(post(connection, path, body))
        stream = {"stream": True, "stream_options": {"include_usage": True}}
        assert of_stream(post(connection, path, body | stream), call["n"]) == whole
        wanted = [expected(tokens, call, chat) for tokens in lists[: call["n"]]]
        echo = "ab é" if call.get("echo") else ""
        texts, reasons, usage = whole
        assert texts == [echo + text for text, _, _ in wanted]
        assert reasons == [reason for _, reason, _ in wanted]
        counts = [count for _, _, count in wanted]
        if None not in counts:
            assert usage["completion_tokens"] == sum(counts)
        assert usage["total_tokens"] == usage["prompt_tokens"] + usage["completion_tokens"]

    check()
