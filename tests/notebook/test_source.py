from __future__ import annotations

import html
import inspect
import json
import re

import pytest

from servelib.engine.naive import NaiveEngine
from servelib.notebook.predict import Prediction
from servelib.notebook.source import say, show_lines, show_source


def test_the_source_shown_is_the_source():
    shown = show_source(NaiveEngine.step).data
    for line in inspect.getsource(NaiveEngine.step).splitlines():
        assert line.strip() in shown
    assert shown.startswith("```python\ndef step(self)")
    assert "`servelib/engine/naive.py`, line" in shown


def test_without_the_docstring_the_code_stays_whole():
    shown = show_source(NaiveEngine.step, doc=False).data
    assert '"""' not in shown
    assert "state = self._current or self._admit()" in shown


def test_chosen_lines_are_shown_with_their_numbers_and_a_lost_one_is_noticed():
    shown = show_lines(NaiveEngine.step, "self._use_cache").data
    source, first = inspect.getsourcelines(NaiveEngine.step)
    wanted = [(first + i, line.strip()) for i, line in enumerate(source) if "self._use_cache" in line]
    assert len(wanted) == 2
    for number, line in wanted:
        assert line in shown
        assert str(number) in shown.splitlines()[-1]
    assert "def step" not in shown
    with pytest.raises(ValueError, match="no_such_name"):
        show_lines(NaiveEngine.step, "no_such_name")


def test_numbers_are_put_in_and_an_undefined_one_says_so():
    assert say("\n    a {x:.1f} b {y:.0%}\n    c", x=2.04, y=None).data == "a 2.0 b undefined\nc"
    with pytest.raises(KeyError):
        say("{missing}")


def test_a_question_needs_a_choice():
    with pytest.raises(ValueError, match="at least 2"):
        Prediction("n", "q", ["only"])


def test_question_and_answer_share_an_id_and_escape_their_text():
    asked = Prediction("n", "Is 1 < 2?", ['"yes"', "<no>"])
    ask, reveal = asked.ask().data, asked.reveal("a < b").data
    assert html.escape("Is 1 < 2?") in ask
    assert "<no>" not in ask
    names = set(re.findall(r'name="([^"]+)"', ask))
    assert names == {"sl-predict-n"}
    assert 'data-guess="sl-predict-n"' in reveal
    assert json.dumps("sl-predict-n") in reveal
    assert "a &lt; b" in reveal
