from __future__ import annotations

import json
import re

import pytest

from servelib.notebook.pieces import TokenBox, as_script, pieces_html, shown
from servelib.text.bpe import PIECE, BytePairs, train

PAIRS = BytePairs(train("the token the tokens <b> " * 3, 20))


@pytest.mark.parametrize(
    ("token", "text"),
    [
        (b" the", "␣the"),
        (b"\n\t", "↵⇥"),
        ("é€".encode(), "é€"),
        ("é".encode()[:1], "C3"),
        ("€".encode()[1:], "82 AC"),
        (b"\x00", "00"),
        (b"\x7f", "7F"),
        (b"", ""),
    ],
)
def test_a_token_is_spelled_so_that_it_is_seen(token, text):
    assert shown(token) == text


def test_markup_in_a_token_stays_text():
    assert "&lt;b&gt; <small>7</small>" in pieces_html([(7, b"<b>")]).replace("</span>", "")


def test_no_text_can_end_the_script_that_holds_it():
    data = {"text": "</script><script>alert(1)</script> é"}
    written = as_script(data)
    assert written.count("<") == 2  # its own two tags
    assert json.loads(re.fullmatch(r"<script[^>]*>(.*)</script>", written)[1]) == data


def test_the_box_carries_the_table_and_reads_without_scripts():
    written = TokenBox(PAIRS, "the <b>")._repr_html_()
    data = json.loads(re.search(r"<script[^>]*>(.*?)</script>", written)[1])
    assert data["pattern"] == PIECE
    assert [PAIRS.ids[bytes.fromhex(token)] for token in data["table"]] == list(range(256, len(PAIRS.ids)))
    assert "<q>the &lt;b&gt;</q>" in written
    assert written.count("<li") == len(PAIRS.pieces("the <b>"))
