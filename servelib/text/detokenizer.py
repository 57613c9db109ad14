"""Token ids to text, as they come: what is given out is final, and never half a character."""

from __future__ import annotations

import codecs
from collections.abc import Iterable

from servelib.text.tokenizer import Tokenizer


class IncrementalDetokenizer:
    """Turns tokens into text piece by piece. All pieces together equal ``tokenizer.decode`` of all ids.

    A token is bytes, and a character may span several tokens. The standard library's incremental
    decoder keeps the bytes of an unfinished character until it is whole, or known to be broken.
    """

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer
        self._decoder = codecs.getincrementaldecoder("utf-8")(errors="replace")

    def push(self, ids: Iterable[int]) -> str:
        """The text that these ids complete; may be empty."""
        return self._decoder.decode(b"".join(map(self._tokenizer.token_bytes, ids)))

    def finish(self) -> str:
        """What is left when no more tokens come: U+FFFD for a character cut short, else nothing."""
        return self._decoder.decode(b"", final=True)
