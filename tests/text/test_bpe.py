from __future__ import annotations

import re

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from servelib.text.bpe import PIECE, BytePairs, Merge, train
from servelib.text.detokenizer import IncrementalDetokenizer
from servelib.text.tokenizer import TURN, Tokenizer

TEXT = "the server serves tokens; the tokens are served, one after the other, to the one who asked. aaaa aa\n"
TABLE = train(TEXT * 3, 80)
PAIRS = BytePairs(TABLE)
ENCODING = PAIRS.encoding()
TYPED = st.text(max_size=60) | st.text("thesrvnok .,;'\n\ta", max_size=60)


def encodable(text):
    return text.encode(errors="ignore").decode()  # without lone surrogates


def test_the_commonest_pair_is_joined_first_and_counted():
    assert train("aab aab ab", 9) == [Merge(b"a", b"b", 3), Merge(b"a", b"ab", 2)]
    assert train("cd,ab,cd,ab", 1) == [Merge(b"a", b"b", 2)]  # a tie: the pair that sorts first


def test_ends_when_no_pair_occurs_twice():
    assert train("abcdef", 10) == []
    assert train("", 10) == []
    assert len(train("ab ab", 10)) < 10


def test_the_same_text_gives_the_same_table():
    assert train(TEXT, 30) == train(TEXT, 30)
    assert train(TEXT, 60)[:30] == train(TEXT, 30)


@settings(deadline=None, derandomize=True, max_examples=400)
@given(TYPED)
def test_encodes_as_tiktoken_does_with_the_same_table(text):
    text = encodable(text)
    assert PAIRS.encode(text) == tuple(ENCODING.encode_ordinary(text))
    assert b"".join(PAIRS.pieces(text)) == text.encode()


@settings(deadline=None, derandomize=True, max_examples=60)
@given(st.text("abcd ", max_size=80), st.integers(0, 40), st.text("abcd ", max_size=40))
def test_any_table_agrees_with_tiktoken(corpus, merges, text):
    pairs = BytePairs(train(corpus, merges))
    assert pairs.encode(text) == tuple(pairs.encoding().encode_ordinary(text))


@settings(deadline=None, derandomize=True, max_examples=300)
@given(TYPED)
def test_the_cuts_cover_every_character(text):
    assert "".join(re.findall(PIECE, text)) == text


def test_no_token_reaches_over_a_cut():
    assert all(len(re.findall(PIECE, merge.piece.decode(errors="replace"))) == 1 for merge in TABLE)


def test_more_merges_never_make_more_tokens_of_the_text_they_were_learned_from():
    lengths = [len(BytePairs(TABLE[:n]).encode(TEXT)) for n in range(0, len(TABLE) + 1, 8)]
    assert lengths == sorted(lengths, reverse=True)
    assert lengths[-1] < lengths[0] / 2


def test_plugs_into_the_tokenizer_with_the_specials_behind_it():
    tokenizer = Tokenizer(ENCODING)
    assert tokenizer.vocab_size == len(PAIRS.ids) + 4
    assert tokenizer.encode_markers(TURN) == (len(PAIRS.ids) + 2,)
    assert len(tokenizer.encode(TURN)) > 1
    text = "the token 世界 <|turn|>"
    detokenizer = IncrementalDetokenizer(tokenizer)
    assert "".join(detokenizer.push((i,)) for i in tokenizer.encode(text)) + detokenizer.finish() == text


@pytest.mark.parametrize("text", ["", "a", " ", "é", "\x00"])
def test_small_texts(text):
    assert BytePairs([]).encode(text) == tuple(text.encode())
