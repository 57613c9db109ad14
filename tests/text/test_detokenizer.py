import itertools

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from servelib.text.detokenizer import IncrementalDetokenizer
from servelib.text.tokenizer import load_tokenizer

tokenizer = load_tokenizer()
MULTILINGUAL = "Grüße, 世界! नमस्ते e\u0301 👩‍👩‍👧‍👦 🏳️‍🌈 ไทย שלום\ufeff 𝔘"


def pieces_of(chunks):
    detokenizer = IncrementalDetokenizer(tokenizer)
    return [*(detokenizer.push(chunk) for chunk in chunks), detokenizer.finish()]


def split(ids, cuts):
    borders = [0, *sorted(cut % (len(ids) + 1) for cut in cuts), len(ids)]
    return [ids[a:b] for a, b in itertools.pairwise(borders)]


def test_byte_by_byte_no_piece_holds_a_broken_character():
    pieces = pieces_of([[byte] for byte in MULTILINGUAL.encode()])
    assert "".join(pieces) == MULTILINGUAL
    assert not any("\ufffd" in piece for piece in pieces)
    assert max(map(len, pieces)) == 1  # each character at the moment it is whole


@pytest.mark.parametrize("cut", range(len(MULTILINGUAL.encode()) + 1))
def test_every_split_in_two(cut):
    raw = MULTILINGUAL.encode()
    pieces = pieces_of([raw[:cut], raw[cut:]])
    assert "".join(pieces) == MULTILINGUAL
    # What is out is all that could be out: whole characters, and no byte of the next.
    assert pieces[0] == raw[:cut].decode("utf-8", errors="ignore")


@settings(deadline=None, derandomize=True, max_examples=300)
@given(st.binary(max_size=40), st.lists(st.integers(0, 1000), max_size=8))
def test_any_bytes_in_any_split_equal_decoding_at_once(raw, cuts):
    assert "".join(pieces_of(split(raw, cuts))) == raw.decode("utf-8", errors="replace")


@settings(deadline=None, derandomize=True, max_examples=200)
@given(st.lists(st.integers(0, 259), max_size=40), st.lists(st.integers(0, 1000), max_size=8))
def test_specials_print_nothing_wherever_they_stand(ids, cuts):
    assert "".join(pieces_of(split(ids, cuts))) == tokenizer.decode(ids)


def test_a_character_cut_short_is_given_once_at_the_end():
    detokenizer = IncrementalDetokenizer(tokenizer)
    assert detokenizer.push("é".encode()[:1]) == ""
    assert detokenizer.finish() == "\ufffd"
    assert detokenizer.finish() == ""


def test_an_invalid_byte_leaves_the_text_around_it():
    assert "".join(pieces_of([b"ab", b"\xff", b"cd"])) == "ab\ufffdcd"
