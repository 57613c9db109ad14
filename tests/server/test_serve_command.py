"""What is typed after ``servelib serve`` is what the server gets."""

import pytest

from servelib.cli import main
from servelib.server import run
from servelib.server.settings import ServerSettings


@pytest.fixture
def settings(monkeypatch):
    """Runs ``servelib serve`` with arguments and returns the settings it would have served with."""
    taken = []
    monkeypatch.setattr(run, "serve", lambda engine, **options: taken.append(options["settings"]))
    monkeypatch.delenv("SERVELIB_API_KEY", raising=False)

    def given(*arguments):
        assert main(["serve", "--log-level", "off", *arguments]) == 0
        return taken.pop()

    return given


def test_without_options_it_is_the_defaults(settings):
    assert settings() == ServerSettings()


@pytest.mark.parametrize(
    ("option", "value", "field", "expected"),
    [
        ("--max-waiting", "3", "max_waiting", 3),
        ("--max-body", "1000", "max_body", 1000),
        ("--max-head", "1000", "max_head", 1000),
        ("--request-timeout", "1.5", "request_timeout", 1.5),
        ("--head-timeout", "2", "head_timeout", 2.0),
        ("--body-timeout", "3", "body_timeout", 3.0),
        ("--write-timeout", "4", "write_timeout", 4.0),
        ("--keep-alive", "5", "keep_alive", 5.0),
        ("--grace", "0", "grace", 0.0),
        ("--api-key", "k", "api_key", "k"),
        ("--allow-origin", "http://a.example", "allow_origins", ("http://a.example",)),
    ],
)
def test_each_option_arrives(settings, option, value, field, expected):
    assert getattr(settings(option, value), field) == expected


def test_the_key_comes_from_the_environment_unless_it_is_typed(settings, monkeypatch):
    monkeypatch.setenv("SERVELIB_API_KEY", "from there")
    assert settings().api_key == "from there"
    assert settings("--api-key", "typed").api_key == "typed"
    monkeypatch.setenv("SERVELIB_API_KEY", "")
    assert settings().api_key is None


@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        (["--max-waiting", "0"], "--max-waiting"),
        (["--request-timeout", "0"], "--request-timeout"),
        (["--grace", "-1"], "--grace"),
        (["--api-key", ""], "--api-key"),
        (["--api-key", "sécret"], "--api-key"),
        (["--allow-origin", "example.org"], "--allow-origin"),
        (["--log-level", "loud"], "--log-level"),
    ],
)
def test_what_cannot_be_meant_is_one_line_and_no_secret(capsys, arguments, named):
    with pytest.raises(SystemExit) as ended:
        main(["serve", *arguments])
    written = capsys.readouterr().err
    assert ended.value.code == 2
    assert named in written
    assert written.count("\n") == 1
    assert "cret" not in written


def test_an_address_for_others_without_a_key_is_pointed_out(settings, capsys):
    settings("--host", "0.0.0.0")
    assert "--api-key" in capsys.readouterr().err
    settings("--host", "0.0.0.0", "--api-key", "k")
    settings("--host", "127.0.0.1")
    assert capsys.readouterr().err == ""
