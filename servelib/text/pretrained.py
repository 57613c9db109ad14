"""A published model's ``tokenizer.json`` and chat template, in the shape of the course's own."""

from __future__ import annotations

import json
from collections.abc import Mapping
from importlib.util import find_spec
from os import PathLike
from pathlib import Path
from typing import Any

from servelib.errors import PretrainedError, check_int
from servelib.model.llama_config import read_json
from servelib.text.chat import ChatTemplate
from servelib.text.tokenizer import REFERENCE_SPECIALS, Tokenizer, check_unicode


class JsonTokenizer(Tokenizer):
    """A ``tokenizer.json`` of Hugging Face's ``tokenizers``, with the methods of ``Tokenizer``.

    Byte-level vocabularies (GPT-2's and Llama 3's way) and SentencePiece's (Llama 2's, with a byte
    for what it cannot spell) are understood. As there, no token is added to what is encoded: a
    template writes its own beginning. ``vocab_size`` is the model's, where that is padded beyond the
    file's: the ids between print nothing. Raises ``PretrainedError`` for a file it cannot use.
    """

    def __init__(self, content: str, *, vocab_size: int = 0, name: str = "tokenizer.json") -> None:
        if find_spec("tokenizers") is None:
            raise PretrainedError(
                "a tokenizer.json needs the package tokenizers: pip install 'servelib[checkpoints]'"
            )
        import tokenizers

        try:
            # One for each way to encode: whether specials are recognised is a state of the object.
            self._markers = tokenizers.Tokenizer.from_str(content)
            self._typed = tokenizers.Tokenizer.from_str(content)
            parts = json.loads(content)
        except Exception as error:  # the library raises Exception itself
            raise PretrainedError(f"{name}: {error}") from None
        self._typed.encode_special_tokens = True  # that is: as ordinary text
        self.vocab_size = max(vocab_size, self._markers.get_vocab_size(with_added_tokens=True))
        added = self._markers.get_added_tokens_decoder()
        self.specials = {token.content: token_id for token_id, token in added.items() if token.special}
        self._spellings = {token_id: spelling for spelling, token_id in self.specials.items()}
        self._added = {token_id: token.content.encode() for token_id, token in added.items()}
        kinds = _kinds(parts.get("decoder"))
        if not kinds & {"ByteLevel", "ByteFallback", "Metaspace"}:
            raise PretrainedError(
                f"{name}: decoder: got {sorted(kinds)}, must be byte-level or SentencePiece's"
            )
        self._byte_level = "ByteLevel" in kinds

    def encode(self, text: str, *, field: str = "prompt") -> tuple[int, ...]:
        """Token ids of text as typed: the spelling of a special in it stays ordinary text."""
        check_unicode(text, field)
        return tuple(self._typed.encode(text, add_special_tokens=False).ids)

    def encode_markers(self, text: str, *, field: str = "prompt") -> tuple[int, ...]:
        """Token ids of text in which a special's spelling means the special. Never for a user's text."""
        check_unicode(text, field)
        return tuple(self._markers.encode(text, add_special_tokens=False).ids)

    def token_bytes(self, token_id: int) -> bytes:
        """The bytes a token prints; none for a special, or for an id that its vocabulary leaves unused.

        Raises ``InvalidRequestError`` for an id outside the vocabulary.
        """
        check_int("token_id", token_id, 0, self.vocab_size - 1)
        if token_id in self._spellings:
            return b""
        if token_id in self._added:
            return self._added[token_id]
        piece = self._markers.id_to_token(token_id)
        if piece is None:
            return b""
        if self._byte_level:
            return (
                bytes(_BYTES[letter] for letter in piece) if _BYTES.keys() >= set(piece) else piece.encode()
            )
        if len(piece) == 6 and piece.startswith("<0x"):
            return bytes([int(piece[3:5], 16)])
        return piece.replace("\N{LOWER ONE EIGHTH BLOCK}", " ").encode()


def load_tokenizer(folder: str | PathLike[str], *, vocab_size: int = 0) -> JsonTokenizer:
    """The tokenizer of a checkpoint's folder. Raises ``PretrainedError``."""
    path = Path(folder) / "tokenizer.json"
    return JsonTokenizer(_read(path), vocab_size=vocab_size, name=str(path))


def load_chat_template(folder: str | PathLike[str]) -> ChatTemplate | None:
    """The chat template of a checkpoint's folder; None where it has none. Raises ``PretrainedError``.

    An assistant's turn ends with the end token that ``tokenizer_config.json`` names.
    """
    where = Path(folder)
    path = where / "tokenizer_config.json"
    given = read_json(path) if path.is_file() else {}
    apart = where / "chat_template.jinja"
    source = _read(apart) if apart.is_file() else given.get("chat_template")
    if not isinstance(source, str):
        return None
    bos, eos = _content(given.get("bos_token")), _content(given.get("eos_token"))
    try:
        return ChatTemplate(source, bos_token=bos, eos_token=eos, stop_tokens=[eos] if eos else [])
    except ValueError as error:
        raise PretrainedError(f"{where}: {error}") from None


def save_reference_tokenizer(folder: str | PathLike[str]) -> None:
    """Write the reference tokenizer as ``tokenizer.json``, for other programs that run the model."""
    letters = {byte: letter for letter, byte in _BYTES.items()}
    level = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": False}
    content = {
        "version": "1.0",
        "added_tokens": [
            {"id": token_id, "content": spelling, "special": True, "single_word": False, "lstrip": False,
             "rstrip": False, "normalized": False}
            for spelling, token_id in REFERENCE_SPECIALS.items()
        ],
        "pre_tokenizer": level,
        "decoder": level,
        "model": {"type": "BPE", "vocab": {letters[byte]: byte for byte in range(256)}, "merges": []},
    }  # fmt: skip
    names = {"tokenizer_class": "PreTrainedTokenizerFast", "bos_token": "<|bos|>", "eos_token": "<|eos|>"}
    to = Path(folder)
    (to / "tokenizer.json").write_text(json.dumps(content, indent=1), encoding="utf-8")
    (to / "tokenizer_config.json").write_text(json.dumps(names, indent=2) + "\n", encoding="utf-8")


def _letters_of_bytes() -> Mapping[str, int]:
    """GPT-2's letters for bytes: a printable one for itself, the others in order from U+0100."""
    plain = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = [byte for byte in range(256) if byte not in plain]
    return {chr(byte): byte for byte in plain} | {chr(256 + i): byte for i, byte in enumerate(others)}


_BYTES = _letters_of_bytes()


def _kinds(part: Any) -> set[str]:
    """The types of a decoder, or of all in a sequence of them."""
    if not isinstance(part, dict):
        return set()
    inner = part.get("decoders") or []
    return {str(part.get("type"))}.union(*map(_kinds, inner))


def _content(token: Any) -> str:
    """A token in ``tokenizer_config.json``: its spelling, or an object that holds it."""
    return str(token.get("content", "")) if isinstance(token, dict) else token or ""


def _read(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise PretrainedError(f"cannot read {path}: {getattr(error, 'strerror', None) or error}") from None
