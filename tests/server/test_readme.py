"""The README's examples of the server, as printed, against a server."""

import json
import re
import shlex
from pathlib import Path

import pytest
from lockstep import Lockstep
from serving import Served, ids

from servelib.cli import main
from servelib.model.config import REFERENCE
from servelib.server import run
from servelib.server.run import BackgroundServer
from servelib.server.service import model_id_of
from servelib.server.settings import ServerSettings

README = (Path(__file__).parents[2] / "README.md").read_text()
SECTION = README.partition("\n## Serve\n")[2].partition("\n## ")[0]
PRINTED = "http://127.0.0.1:8000"
TEXT = "It is noise."


def blocks(language):
    return re.findall(rf"```{language}\n(.*?)```", SECTION, re.DOTALL)


def commands(name):
    """The words of each command with ``name`` in it, as a shell reads them."""
    lines = "".join(blocks("shell")).replace("\\\n", " ").splitlines()
    words = [shlex.split(line, comments=True) for line in lines]
    return [command for command in words if any(word.endswith(name) for word in command[:2])]


@pytest.fixture(scope="module")
def served():
    script = ids(TEXT)
    engine = Lockstep(lambda state: script[len(state.output_ids)])
    settings = ServerSettings(api_key=None)
    with BackgroundServer(engine, model_id=model_id_of(REFERENCE.label), settings=settings) as server:
        served = Served(server, engine, server.spans)
        yield served
        served.client.close()


def perform(served, words):
    """What ``curl`` would do, of the options that the README uses."""
    url, data, headers = "", None, {}
    rest = iter(words[1:])
    for word in rest:
        if word == "-H":
            name, _, value = next(rest).partition(": ")
            headers[name] = value
        elif word == "-d":
            data = next(rest).encode()
        elif word != "-N":  # show each part as it comes
            assert word.startswith(PRINTED), words
            url = word
    return served.fetch(url.removeprefix(PRINTED), data, **headers)


def test_each_curl_works(served):
    raw = {tuple(words): perform(served, words) for words in commands("curl")}
    assert len(raw) >= 8
    assert {status for status, _ in raw.values()} == {200}
    completion, chat, stream, tokens, *_ = [body.decode() for _, body in raw.values()]
    assert json.loads(completion)["choices"][0]["text"] == TEXT
    assert json.loads(chat)["choices"][0]["message"]["content"] == TEXT
    assert stream.startswith("data: {")
    assert stream.endswith("data: [DONE]\n\n")
    assert json.loads(tokens)["tokens"] == list(b"Hello")


def test_the_program_with_the_official_client_works(served, capsys):
    [program] = [block for block in blocks("python") if "openai" in block]
    assert PRINTED in program
    exec(program.replace(PRINTED, served.url), {})
    assert capsys.readouterr().out == f"['It is nois', 'It is nois'] 22\n{TEXT}"


def test_the_program_for_a_notebook_works(capsys):
    [program] = [block for block in blocks("python") if "BackgroundServer" in block]
    exec(program, {})
    assert capsys.readouterr().out.startswith("http://127.0.0.1:")


def test_the_command_that_lets_others_in_means_what_is_said(monkeypatch, capsys):
    taken = []
    monkeypatch.setattr(run, "serve", lambda engine, **options: taken.append(options["settings"]))
    [words] = commands("servelib")
    name, _, value = words[0].partition("=")
    monkeypatch.setenv(name, value)
    assert main([*words[2:], "--log-level", "off"]) == 0
    assert capsys.readouterr().err == ""  # no warning: there is a key
    assert taken == [ServerSettings(max_waiting=64, request_timeout=60.0, api_key="secret")]
    [asked] = [words for words in commands("curl") if "authorization" in " ".join(words)]
    assert f"authorization: Bearer {value}" in asked
