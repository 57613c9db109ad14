from __future__ import annotations

from servelib.notebook.text_knobs import text_knobs
from servelib.text.bpe import BytePairs, train

PAIRS = BytePairs(train("the token the tokens " * 3, 20))


def test_the_panel_follows_text_and_slider():
    panel = text_knobs(PAIRS, "the €")
    ids = PAIRS.encode("the €")
    assert panel.tokens.value.count("<li") == len(ids) == panel.received.max
    assert f"{len(ids)} tokens for 5 characters, 7 bytes" in panel.status.value
    panel.received.value = len(ids) - 1
    assert "E2 82" in panel.stream.value
    panel.received.value = len(ids)
    assert "correct</b><br>the €" in panel.stream.value
    assert "\ufffd" in panel.stream.value
    panel.received.value = 0
    assert panel.stream.value.count("(nothing yet)") == 2


def test_bare_bytes_and_a_shorter_text():
    panel = text_knobs(PAIRS, "the tokens")
    panel.received.value = panel.received.max
    panel.merged.value = False
    assert panel.received.max == 10
    panel.text.value = "<"
    assert panel.received.value == 1
    assert "&lt;" in panel.stream.value
    panel.text.value = ""
    assert "0 tokens" in panel.status.value
    assert 'role="alert"' not in panel.status.value
