from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from servelib.notebook.replay import Replay, replay_steps
from servelib.text.tokenizer import Tokenizer

TOKENIZER = Tokenizer()


@settings(deadline=None, derandomize=True, max_examples=100)
@given(st.lists(st.integers(0, 259), min_size=1, max_size=20))
def test_the_correct_side_joins_to_the_text_and_the_naive_one_to_single_tokens(ids):
    steps = replay_steps(TOKENIZER, ids)
    assert "".join(step.correct for step in steps) == TOKENIZER.decode(ids)
    assert [step.naive for step in steps] == [TOKENIZER.decode([i]) for i in ids]
    assert steps[-1].held == ""


def test_what_is_held_back_is_shown_as_bytes():
    steps = replay_steps(TOKENIZER, tuple("a€".encode()))
    assert [(s.token, s.naive, s.correct, s.held) for s in steps] == [
        ("a", "a", "a", ""),
        ("E2", "\ufffd", "", "E2"),
        ("82", "\ufffd", "", "E2 82"),
        ("AC", "\ufffd", "€", ""),
    ]


def test_it_reads_as_a_table_without_scripts_and_has_a_label():
    written = Replay(TOKENIZER, tuple(b"<b>"), alt='a "stream"', start=2)._repr_html_()
    assert 'aria-label="a &quot;stream&quot;"' in written
    assert written.count("<tr>") == 4
    assert "<td>&lt;</td>" in written


@pytest.mark.parametrize("start", [0, 4])
def test_a_start_outside_the_stream_is_refused(start):
    with pytest.raises(ValueError, match="from 1 to 3"):
        Replay(TOKENIZER, (1, 2, 3), alt="a", start=start)


def test_a_stream_of_nothing_has_no_steps():
    assert replay_steps(TOKENIZER, ()) == []
