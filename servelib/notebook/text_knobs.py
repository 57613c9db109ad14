"""The live panel of chapter 4: a text, its tokens, and its stream as two decoders show it."""

from __future__ import annotations

import html
from itertools import accumulate

import ipywidgets as w

from servelib.notebook.panel import Panel
from servelib.notebook.pieces import pieces_html
from servelib.notebook.replay import replay_steps
from servelib.text.bpe import BytePairs
from servelib.text.tokenizer import Tokenizer

_STYLE = {"description_width": "165px"}


def text_knobs(pairs: BytePairs, text: str) -> TextKnobs:
    """Show the panel: make it the last line of a cell."""
    return TextKnobs(pairs, text)


class TextKnobs(Panel):
    """The panel. Its controls are attributes, so that code can turn them too."""

    def __init__(self, pairs: BytePairs, text: str) -> None:
        self._pairs, self._tokenizer = pairs, Tokenizer(pairs.encoding())
        wide = {"layout": {"width": "auto"}, "style": _STYLE}
        self.text = w.Textarea(value=text, description="text", tooltip="text", rows=3, **wide)
        self.merged = w.Checkbox(value=True, description="merge bytes (the table above)", indent=False)
        self.received = w.IntSlider(
            value=1, min=0, max=1, description="tokens received", tooltip="tokens received", **wide
        )
        self.tokens, self.stream = w.HTML(), w.HTML()
        super().__init__([self.text, self.received, self.merged], [self.tokens, self.stream])
        self.refresh()

    def refresh(self) -> None:
        """Tokenise the text, and replay it as far as the slider says."""
        text = self.text.value
        ids = self._pairs.encode(text) if self.merged.value else tuple(text.encode())
        self.received.max = len(ids)
        bare = [(token_id, self._tokenizer.token_bytes(token_id)) for token_id in ids]
        self.tokens.value = pieces_html(bare)
        steps = replay_steps(self._tokenizer, ids)
        done = min(self.received.value, len(steps))
        naive = [*accumulate(step.naive for step in steps), ""][done - 1]
        correct = [*accumulate(step.correct for step in steps), ""][done - 1]
        held = steps[done - 1].held if done else ""
        self.stream.value = "".join(
            f"<p><b>{name}</b><br>{html.escape(value) or '(nothing yet)'}</p>"
            for name, value in (
                (f"naive, after {done} of {len(steps)} tokens", naive),
                ("correct", correct),
                ("held back, bytes", held or "none"),
            )
        )
        self._say(f"{len(ids)} tokens for {len(text)} characters, {len(text.encode())} bytes.")
