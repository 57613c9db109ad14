import pytest
import tiktoken
from hypothesis import given, settings
from hypothesis import strategies as st

from servelib.errors import InvalidRequestError
from servelib.model.config import REFERENCE
from servelib.text.tokenizer import REFERENCE_SPECIALS, Tokenizer, load_tokenizer

tokenizer = load_tokenizer()
text_with_markers = st.lists(
    st.one_of(st.text(max_size=8), st.sampled_from(list(REFERENCE_SPECIALS))), max_size=6
).map("".join)


def test_the_vocabulary_is_the_reference_models():
    assert tokenizer.vocab_size == REFERENCE.vocab_size == 260
    assert tokenizer.specials["<|bos|>"] == REFERENCE.bos_id
    assert tokenizer.specials["<|eos|>"] == REFERENCE.eos_id
    assert sorted(tokenizer.specials.values()) == [256, 257, 258, 259]


@pytest.mark.parametrize("byte", range(256))
def test_each_byte_is_its_own_token(byte):
    assert tokenizer.token_bytes(byte) == bytes([byte])


@settings(deadline=None, derandomize=True)
@given(text_with_markers)
def test_typed_text_is_its_bytes_and_comes_back(text):
    ids = tokenizer.encode(text)
    assert ids == tuple(text.encode())
    assert tokenizer.decode(ids) == text


def test_markers_count_only_where_they_are_allowed():
    assert tokenizer.encode_markers("<|turn|>a<|end|>") == (258, 97, 259)
    assert tokenizer.encode("<|turn|>") == tuple(b"<|turn|>")


def test_specials_print_nothing_and_are_spelled_by_name():
    assert tokenizer.decode([256, 104, 259, 105, 257]) == "hi"
    assert tokenizer.token_text(257) == "<|eos|>"
    assert tokenizer.token_text(104) == "h"
    assert tokenizer.token_text(0xE2) == "bytes:\\xe2"


@pytest.mark.parametrize("encode", [tokenizer.encode, tokenizer.encode_markers])
def test_a_lone_surrogate_is_refused_with_its_place(encode):
    with pytest.raises(InvalidRequestError, match=r"U\+D800.*character 2") as caught:
        encode("ab\ud800", field="messages")
    assert caught.value.field == "messages"


@pytest.mark.parametrize("token_id", [-1, 260, 10**9])
def test_an_id_outside_the_vocabulary_is_refused(token_id):
    with pytest.raises(InvalidRequestError, match="from 0 to 259"):
        tokenizer.decode([token_id])


def test_a_byte_pair_vocabulary_plugs_in():
    ranks = {bytes([byte]): byte for byte in range(256)} | {b"th": 256, b"the": 257}
    bigger = Tokenizer(
        tiktoken.Encoding(
            "tiny-bpe", pat_str=r"\S+|\s+", mergeable_ranks=ranks, special_tokens={"<|eos|>": 300}
        )
    )
    assert bigger.vocab_size == 301
    assert bigger.encode("the thé") == (257, 32, 256, 0xC3, 0xA9)
    assert bigger.decode(bigger.encode("the <|eos|>")) == "the <|eos|>"
    assert bigger.encode_markers("the<|eos|>") == (257, 300)
    assert bigger.token_bytes(280) == b""  # an id that the vocabulary leaves unused
