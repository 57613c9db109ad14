"""Text to token ids and back, over any ``tiktoken.Encoding``.

The reference vocabulary is made here, offline: the 256 bytes, each its own token, and 4 specials.
"""

from __future__ import annotations

from collections.abc import Iterable

import tiktoken

from servelib.errors import InvalidRequestError, check_int

BOS, EOS, TURN, END_OF_TURN = "<|bos|>", "<|eos|>", "<|turn|>", "<|end|>"
REFERENCE_SPECIALS = {BOS: 256, EOS: 257, TURN: 258, END_OF_TURN: 259}
"""Begin and end of a text (the ids that ``model.config.REFERENCE`` knows), and of a chat turn."""


def reference_encoding() -> tiktoken.Encoding:
    """The 260 tokens of the reference model: id n < 256 is the byte n."""
    return tiktoken.Encoding(
        "servelib-bytes",
        # One character a piece: with nothing to merge, longer pieces would only cost time.
        pat_str=r"(?s:.)",
        mergeable_ranks={bytes([byte]): byte for byte in range(256)},
        special_tokens=REFERENCE_SPECIALS,
        explicit_n_vocab=260,
    )


class Tokenizer:
    """Encodes text, spells tokens. A bigger vocabulary plugs in as another ``tiktoken.Encoding``.

    Two ways to encode, and the difference is a security boundary: ``encode`` is for text that
    somebody typed, and never makes a special token; ``encode_markers`` is for text that this
    program wrote, and does.
    """

    def __init__(self, encoding: tiktoken.Encoding | None = None) -> None:
        self.encoding = encoding or reference_encoding()
        self.vocab_size = self.encoding.n_vocab
        self.specials = {
            spelling: self.encoding.encode_single_token(spelling)
            for spelling in self.encoding.special_tokens_set
        }
        self._spellings = {token_id: spelling for spelling, token_id in self.specials.items()}
        self._bytes: dict[int, bytes] = {}  # of the ids that were asked for: a stream asks for few, often

    def encode(self, text: str, *, field: str = "prompt") -> tuple[int, ...]:
        """Token ids of text as typed: the spelling of a special in it stays ordinary text.

        Raises ``InvalidRequestError``, naming ``field``, for a text with a lone surrogate: it has no
        UTF-8 form, so no tokens.
        """
        check_unicode(text, field)
        return tuple(self.encoding.encode_ordinary(text))

    def encode_markers(self, text: str, *, field: str = "prompt") -> tuple[int, ...]:
        """Token ids of text in which a special's spelling means the special. Never for a user's text.

        Raises ``InvalidRequestError`` as ``encode`` does.
        """
        check_unicode(text, field)
        return tuple(self.encoding.encode(text, allowed_special="all"))

    def token_bytes(self, token_id: int) -> bytes:
        """The bytes a token prints; none for a special, or for an id that its vocabulary leaves unused.

        Raises ``InvalidRequestError`` for an id outside the vocabulary.
        """
        known = self._bytes.get(token_id)
        if known is not None and type(token_id) is int:  # True is 1 to a dictionary
            return known
        check_int("token_id", token_id, 0, self.vocab_size - 1)
        try:
            raw = b"" if token_id in self._spellings else self.encoding.decode_single_token_bytes(token_id)
        except KeyError:
            raw = b""
        self._bytes[token_id] = raw
        return raw

    def token_text(self, token_id: int) -> str:
        """One token spelled for a person: specials by name, bytes that are no text as ``bytes:\\xe2``."""
        if token_id in self._spellings:
            return self._spellings[token_id]
        raw = self.token_bytes(token_id)
        try:
            return raw.decode("utf-8")
        except UnicodeDecodeError:
            return "bytes:" + "".join(f"\\x{byte:02x}" for byte in raw)

    def decode(self, ids: Iterable[int]) -> str:
        """The text of whole token ids. Bytes that are not UTF-8 become U+FFFD; specials print nothing."""
        return b"".join(map(self.token_bytes, ids)).decode("utf-8", errors="replace")


def load_tokenizer() -> Tokenizer:
    """The reference tokenizer."""
    return Tokenizer()


def check_unicode(text: str, field: str) -> None:
    """Raise ``InvalidRequestError``, naming ``field``, for a text with a lone surrogate."""
    try:
        text.encode("utf-8")
    except UnicodeEncodeError as error:
        found = f"a lone surrogate (U+{ord(text[error.start]):04X}) at character {error.start}"
        raise InvalidRequestError(field, found, "text that UTF-8 can hold") from None
