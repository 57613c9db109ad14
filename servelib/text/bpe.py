"""Byte-pair encoding: a merge table learned from a text, and the encoder that applies it.

Source: Sennrich et al. 2016, algorithm 1, over bytes. ``tiktoken`` does the same, faster; ``encoding``
hands it the table.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from itertools import pairwise

import tiktoken

from servelib.text.tokenizer import END_OF_TURN, REFERENCE_SPECIALS

PIECE = r""" ?[^ \n\t.,:;!?'"()]+| ?[.,:;!?'"()]+|[ \n\t]+"""
"""A text is cut here first, and no merge crosses a cut: words with the space before them, punctuation,
white space. It names its characters one by one, so that Python, Rust and a browser read it alike."""


@dataclass(frozen=True, slots=True)
class Merge:
    """One line of the table: two neighbours, and how often they stood side by side when it was learned."""

    left: bytes
    right: bytes
    count: int

    @property
    def piece(self) -> bytes:
        """The new token."""
        return self.left + self.right


def train(text: str, merges: int) -> list[Merge]:
    """Learn up to ``merges`` merges: join the commonest pair of neighbours, count again, and so on.

    Ties go to the pair that sorts first, so a text gives one table. Ends early when no pair is left
    that occurs twice.
    """
    words = Counter(tuple(_bytes_of(piece)) for piece in re.findall(PIECE, text))
    table: list[Merge] = []
    while len(table) < merges:
        pairs: Counter[tuple[bytes, bytes]] = Counter()
        for word, times in words.items():
            for pair in pairwise(word):
                pairs[pair] += times
        if not pairs or max(pairs.values()) < 2:
            break
        (left, right), count = min(pairs.items(), key=lambda item: (-item[1], item[0]))
        table.append(Merge(left, right, count))
        joined: Counter[tuple[bytes, ...]] = Counter()
        for word, times in words.items():
            joined[tuple(_join(list(word), left, right))] += times
        words = joined
    return table


class BytePairs:
    """A vocabulary: the 256 bytes, then a token for each merge. Token ids are the order of learning."""

    def __init__(self, table: Iterable[Merge]) -> None:
        self.ids = {bytes([byte]): byte for byte in range(256)}
        for merge in table:
            self.ids.setdefault(merge.piece, len(self.ids))

    def pieces(self, text: str) -> list[bytes]:
        """The tokens of a text, as bytes: the merge that was learned first is applied first."""
        return [token for piece in re.findall(PIECE, text) for token in self._merged(_bytes_of(piece))]

    def encode(self, text: str) -> tuple[int, ...]:
        """Token ids of a text."""
        return tuple(self.ids[token] for token in self.pieces(text))

    def encoding(self) -> tiktoken.Encoding:
        """The same table in ``tiktoken``, the book's four specials behind it: ready for ``Tokenizer``."""
        first = len(self.ids) - REFERENCE_SPECIALS["<|bos|>"]
        specials = {name: first + number for name, number in REFERENCE_SPECIALS.items()}
        return tiktoken.Encoding(
            "servelib-byte-pairs",
            pat_str=PIECE,
            mergeable_ranks=self.ids,
            special_tokens=specials,
            explicit_n_vocab=specials[END_OF_TURN] + 1,
        )

    def _merged(self, parts: list[bytes]) -> list[bytes]:
        while len(parts) > 1:
            pairs = list(pairwise(parts))
            left, right = min(pairs, key=lambda pair: self.ids.get(pair[0] + pair[1], len(self.ids)))
            if left + right not in self.ids:
                break
            parts = _join(parts, left, right)
        return parts


def _join(parts: list[bytes], left: bytes, right: bytes) -> list[bytes]:
    """Every ``left`` that is followed by ``right`` becomes one part, from the left."""
    out: list[bytes] = []
    for part in parts:
        if out and out[-1] == left and part == right:
            out[-1] = left + right
        else:
            out.append(part)
    return out


def _bytes_of(piece: str) -> list[bytes]:
    return [bytes([byte]) for byte in piece.encode()]
