from __future__ import annotations

import json
import random
from pathlib import Path
from typing import Any

import pytest
import tokenizers
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import decoders, models, normalizers, pre_tokenizers, trainers

from servelib.errors import InvalidRequestError, PretrainedError
from servelib.text import pretrained
from servelib.text.chat import Message, encode_segments
from servelib.text.detokenizer import IncrementalDetokenizer
from servelib.text.pretrained import (
    JsonTokenizer,
    load_chat_template,
    load_tokenizer,
    save_reference_tokenizer,
)
from servelib.text.tokenizer import Tokenizer

WORDS = "the queue then the thé — of them all, then 12 more 😀 queues"
SPECIALS = ["<|eos|>", "<|turn|>"]


def byte_level() -> tokenizers.Tokenizer:
    """As GPT-2 and Llama 3 have it."""
    made = tokenizers.Tokenizer(models.BPE())
    made.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    made.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    made.train_from_iterator(
        [WORDS],
        trainers.BpeTrainer(
            vocab_size=300, special_tokens=SPECIALS, initial_alphabet=alphabet, show_progress=False
        ),
    )
    made.add_tokens(["<tool>"])  # added, and yet text
    return made


def sentence_piece() -> tokenizers.Tokenizer:
    """As Llama 2 has it: a mark for a space, and bytes for what no piece spells."""
    pieces = ["<unk>", *SPECIALS, *(f"<0x{byte:02X}>" for byte in range(256)), "▁", "t", "h", "th"]
    made = tokenizers.Tokenizer(
        models.BPE(
            vocab={piece: i for i, piece in enumerate(pieces)},
            merges=[("t", "h")], unk_token="<unk>", fuse_unk=True, byte_fallback=True,
        )
    )  # fmt: skip
    made.normalizer = normalizers.Replace(" ", "▁")
    made.decoder = decoders.Sequence([decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse()])
    made.add_special_tokens(["<unk>", *SPECIALS])
    return made


MADE = {"byte level": byte_level(), "sentence piece": sentence_piece()}
OURS = {name: JsonTokenizer(made.to_str()) for name, made in MADE.items()}
both = pytest.mark.parametrize("name", sorted(MADE))
pieces_of_text = st.lists(
    st.one_of(st.text(max_size=8), st.sampled_from(SPECIALS), st.sampled_from(WORDS.split())), max_size=6
).map("".join)


@both
@settings(deadline=None, derandomize=True)
@given(text=pieces_of_text)
def test_typed_text_comes_back_and_never_makes_a_special(name: str, text: str):
    tokenizer = OURS[name]
    ids = tokenizer.encode(text)
    assert tokenizer.decode(ids) == text
    assert not set(ids) & set(tokenizer.specials.values())


@both
@settings(deadline=None, derandomize=True)
@given(text=pieces_of_text)
def test_markers_are_encoded_as_the_library_does(name: str, text: str):
    tokenizer = OURS[name]
    ids = tokenizer.encode_markers(text)
    assert list(ids) == MADE[name].encode(text, add_special_tokens=False).ids
    assert tokenizer.decode(ids) == MADE[name].decode(list(ids), skip_special_tokens=True)


@both
def test_any_tokens_print_what_the_library_prints_and_in_pieces(name: str):
    tokenizer, rng = OURS[name], random.Random(1)
    for _ in range(200):
        ids = [rng.randrange(tokenizer.vocab_size) for _ in range(rng.randrange(12))]
        whole = tokenizer.decode(ids)
        detokenizer = IncrementalDetokenizer(tokenizer)
        assert "".join(detokenizer.push([i]) for i in ids) + detokenizer.finish() == whole
        if "\ufffd" not in whole:  # how many marks broken bytes become differs, and both are right
            assert whole == MADE[name].decode(ids, skip_special_tokens=True)


@both
def test_it_is_spelled_like_the_courses_own(name: str):
    tokenizer = OURS[name]
    assert isinstance(tokenizer, Tokenizer)
    eos = tokenizer.specials["<|eos|>"]
    assert tokenizer.token_text(eos) == "<|eos|>"
    assert tokenizer.token_bytes(eos) == b""
    assert tokenizer.encode_markers("th<|eos|>")[-1] == eos
    with pytest.raises(InvalidRequestError, match=r"U\+D800"):
        tokenizer.encode("a\ud800")
    with pytest.raises(InvalidRequestError, match="token_id: got"):
        tokenizer.token_bytes(tokenizer.vocab_size)


def test_an_added_token_that_is_no_special_prints_itself():
    tokenizer = OURS["byte level"]
    (tool,) = tokenizer.encode("<tool>")
    assert tokenizer.token_bytes(tool) == b"<tool>"


def test_a_padded_vocabulary_has_ids_that_print_nothing():
    tokenizer = JsonTokenizer(MADE["byte level"].to_str(), vocab_size=400)
    assert tokenizer.vocab_size == 400
    assert tokenizer.decode([399]) == ""


def test_the_reference_tokenizer_as_a_file_is_the_reference_tokenizer(tmp_path: Path):
    save_reference_tokenizer(tmp_path)
    read, own = load_tokenizer(tmp_path), Tokenizer()
    assert (read.vocab_size, read.specials) == (own.vocab_size, own.specials)
    assert [read.token_bytes(i) for i in range(260)] == [own.token_bytes(i) for i in range(260)]
    for text in (WORDS, "<|eos|>\n\x00 <|turn|>", ""):
        assert read.encode(text) == own.encode(text)
        assert read.encode_markers(text) == own.encode_markers(text)


def test_a_checkpoints_chat_template_is_read(tmp_path: Path):
    assert load_chat_template(tmp_path) is None
    (tmp_path / "tokenizer.json").write_text(MADE["byte level"].to_str())
    source = "{{ bos_token }}{% for m in messages %}<|turn|>{{ m.content }}{% endfor %}"
    given: dict[str, Any] = {
        "chat_template": source,
        "bos_token": {"content": "<|turn|>"},
        "eos_token": "<|eos|>",
    }
    (tmp_path / "tokenizer_config.json").write_text(json.dumps(given))
    template, tokenizer = load_chat_template(tmp_path), load_tokenizer(tmp_path)
    assert template is not None
    turn, eos = tokenizer.specials["<|turn|>"], tokenizer.specials["<|eos|>"]
    assert template.stop_ids(tokenizer) == (eos,)
    ids = encode_segments(tokenizer, template.render([Message("user", "the <|eos|>")]))
    assert ids[:2] == (turn, turn)
    assert eos not in ids
    (tmp_path / "chat_template.jinja").write_text("{{ messages[0].content }}")  # wins over the older place
    assert load_chat_template(tmp_path).render([Message("user", "hi")])[-1].text == "hi"


@pytest.mark.parametrize(
    ("content", "said"),
    [
        ("{", "tokenizer.json: "),
        ("[]", "tokenizer.json: "),
        (tokenizers.Tokenizer(models.BPE()).to_str(), "decoder: got .*must be byte-level or SentencePiece's"),
    ],
)
def test_a_file_that_cannot_be_used_is_one_line(content: str, said: str, tmp_path: Path):
    (tmp_path / "tokenizer.json").write_text(content)
    with pytest.raises(PretrainedError, match=said) as caught:
        load_tokenizer(tmp_path)
    assert "\n" not in str(caught.value)


def test_what_is_absent_or_broken_is_one_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    with pytest.raises(PretrainedError, match=r"cannot read .*tokenizer.json: No such file"):
        load_tokenizer(tmp_path)
    (tmp_path / "chat_template.jinja").write_text("{% for %}")
    with pytest.raises(PretrainedError, match="chat template"):
        load_chat_template(tmp_path)
    monkeypatch.setattr(pretrained, "find_spec", lambda name: None)
    with pytest.raises(PretrainedError, match=r"pip install 'servelib\[checkpoints\]'"):
        JsonTokenizer("{}")
