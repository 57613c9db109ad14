import itertools

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from servelib.text.stops import StopMatcher


def run(stops, chunks):
    matcher = StopMatcher(stops)
    pieces = [matcher.push(chunk) for chunk in chunks]
    return [*pieces, matcher.finish()], matcher.matched


def cut_at_once(text, stops):
    """The definition: everything before the lowest place where any stop string occurs."""
    return text[: min((text.find(stop) for stop in stops if stop in text), default=len(text))]


def chunked(text, cuts):
    borders = [0, *sorted(cut % (len(text) + 1) for cut in cuts), len(text)]
    return [text[a:b] for a, b in itertools.pairwise(borders)]


@settings(deadline=None, derandomize=True, max_examples=500)
@given(
    st.text("abc", max_size=24),
    st.lists(st.text("abc", min_size=1, max_size=4), max_size=3),
    st.lists(st.integers(0, 100), max_size=8),
)
def test_any_split_cuts_where_the_whole_text_is_cut(text, stops, cuts):
    pieces, matched = run(stops, chunked(text, cuts))
    assert "".join(pieces) == cut_at_once(text, stops)
    assert (matched is not None) == any(stop in text for stop in stops)


@settings(deadline=None, derandomize=True, max_examples=300)
@given(st.text("ab", max_size=12), st.lists(st.text("ab", min_size=1, max_size=4), min_size=1, max_size=3))
def test_only_the_possible_beginning_of_a_stop_string_is_held_back(text, stops):
    matcher = StopMatcher(stops)
    sent = "".join(matcher.push(letter) for letter in text)
    if matcher.matched is None:
        held = text[len(sent) :]
        assert not held or any(stop.startswith(held) or held.find(stop) > 0 for stop in stops)


@pytest.mark.parametrize("cut", range(13))
def test_every_border_through_a_stop_string(cut):
    text = "one\u00e9<stop>two"
    pieces, matched = run(["<stop>"], [text[:cut], text[cut:]])
    assert "".join(pieces) == "oneé"
    assert matched == "<stop>"


def test_a_false_start_is_delivered_once_and_at_once():
    matcher = StopMatcher(["###"])
    assert [matcher.push(piece) for piece in ["a#", "#", "b", "##"]] == ["a", "", "##b", ""]
    assert matcher.finish() == "##"
    assert matcher.finish() == ""


def test_the_earliest_beginning_wins_even_if_it_completes_later():
    pieces, matched = run(["bc", "abcd"], "xabcd")
    assert "".join(pieces) == "x"
    assert matched == "abcd"
    pieces, matched = run(["bc", "abcd"], "xabce")
    assert "".join(pieces) == "xa"
    assert matched == "bc"


def test_nothing_comes_after_a_match():
    matcher = StopMatcher(["."])
    assert matcher.push("a.b") == "a"
    assert matcher.push("c") == ""
    assert matcher.finish() == ""


def test_without_stop_strings_text_flows():
    assert run([], ["a", "", "b"])[0] == ["a", "", "b", ""]


def test_an_empty_stop_string_is_refused():
    with pytest.raises(ValueError, match="empty string"):
        StopMatcher(["a", ""])
