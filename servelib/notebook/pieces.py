"""Tokens as a reader sees them: boxes with a border, spaces made visible, bytes that are no text in hex.

``TokenBox`` is read three ways: ``book/_static/tokens.js`` turns it into a text box that tokenises in the
page; without scripts, and in a live notebook, its example stands there as it is.
"""

from __future__ import annotations

import html
import json
from collections.abc import Iterable

from servelib.text.bpe import PIECE, BytePairs

_VISIBLE = {" ": "␣", "\n": "↵", "\t": "⇥"}
LABEL = "Type a text"


def shown(token: bytes) -> str:
    """One token in letters; ``␣`` is a space. Bytes that are no text, or no visible one, in hex."""
    try:
        text = token.decode()
    except UnicodeDecodeError:
        return token.hex(" ").upper()
    if any(ord(c) < 32 or ord(c) == 127 for c in text if c not in _VISIBLE):
        return token.hex(" ").upper()
    return "".join(_VISIBLE.get(c, c) for c in text)


def pieces_html(tokens: Iterable[tuple[int, bytes]], label: str = "Tokens") -> str:
    """A list of tokens, each with its id below."""
    # The look is inline as well: a live notebook has no style sheet of ours.
    box = "display:inline-block;border:1px solid #808891;border-radius:4px;margin:2px;padding:1px 5px"
    items = "".join(
        f'<li style="{box}"><span>{html.escape(shown(token))}</span> <small>{number}</small></li>'
        for number, token in tokens
    )
    look = 'style="padding:0;list-style:none"'
    return f'<ol class="sl-pieces" aria-label="{html.escape(label)}" {look}>{items}</ol>'


def as_script(data: object) -> str:
    """Data for a script in the page; no text in it can end the element it stands in."""
    text = json.dumps(data, ensure_ascii=False).replace("<", "\\u003c")
    return f'<script type="application/json">{text}</script>'


class TokenBox:
    """A text box with the merge table of ``pairs``. ``text`` is what stands in it at first."""

    def __init__(self, pairs: BytePairs, text: str) -> None:
        self._pairs, self._text = pairs, text

    def _repr_html_(self) -> str:
        table = [token.hex() for token in self._pairs.ids if len(token) > 1]
        data = {"pattern": PIECE, "table": table, "text": self._text, "label": LABEL}
        example = [(self._pairs.ids[token], token) for token in self._pairs.pieces(self._text)]
        return (
            f'<div class="sl-tokens">{as_script(data)}'
            f'<p class="sl-tokens-text"><q>{html.escape(self._text)}</q></p>{pieces_html(example)}</div>'
        )
