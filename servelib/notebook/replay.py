"""A stream replayed token by token: what a naive decoder shows, and what a correct one does.

``book/_static/tokens.js`` makes a range input of it. Without scripts, and in a live notebook, it is a table.
"""

from __future__ import annotations

import codecs
import html
from collections.abc import Sequence
from dataclasses import asdict, dataclass

from servelib.notebook.pieces import as_script, shown
from servelib.text.detokenizer import IncrementalDetokenizer
from servelib.text.tokenizer import Tokenizer


@dataclass(frozen=True, slots=True)
class ReplayStep:
    """One token's arrival: what each decoder adds to the text, and the bytes the correct one holds."""

    token: str
    naive: str
    correct: str
    held: str


def replay_steps(tokenizer: Tokenizer, ids: Sequence[int]) -> list[ReplayStep]:
    """The steps of a stream of tokens; what is left at the end goes out with the last one."""
    detokenizer = IncrementalDetokenizer(tokenizer)
    follower = codecs.getincrementaldecoder("utf-8")(errors="replace")
    steps: list[ReplayStep] = []
    for number, token_id in enumerate(ids, start=1):
        raw = tokenizer.token_bytes(token_id)
        correct = detokenizer.push((token_id,))
        follower.decode(raw)
        held = follower.getstate()[0]
        if number == len(ids):
            correct, held = correct + detokenizer.finish(), b""
        steps.append(ReplayStep(shown(raw), tokenizer.decode((token_id,)), correct, held.hex(" ").upper()))
    return steps


class Replay:
    """The replay of a stream. Starts at token ``start``; ``alt`` says what it shows."""

    def __init__(self, tokenizer: Tokenizer, ids: Sequence[int], *, alt: str, start: int = 1) -> None:
        if not 1 <= start <= len(ids):
            raise ValueError(f"start: got {start}, must be from 1 to {len(ids)}, the number of tokens")
        self.steps = replay_steps(tokenizer, ids)
        self._alt, self._start = alt, start

    def _repr_html_(self) -> str:
        data = {"start": self._start, "steps": [asdict(step) for step in self.steps]}
        rows = "".join(
            f'<tr><th scope="row">{number}</th><td>{html.escape(step.token)}</td><td>{_cell(step.naive)}</td>'
            f"<td>{_cell(step.correct)}</td><td>{step.held or 'nothing'}</td></tr>"
            for number, step in enumerate(self.steps, start=1)
        )
        head = "".join(
            f'<th scope="col">{name}</th>'
            for name in ("token", "its text or bytes", "naive adds", "correct adds", "held back")
        )
        alt = html.escape(self._alt, quote=True)
        return (
            f'<div class="sl-replay" role="group" aria-label="{alt}">{as_script(data)}'
            f"<details><summary>The whole stream as a table</summary>"
            f'<div class="sl-table" tabindex="0" role="region" aria-label="The stream, token by token">'
            f"<table><thead><tr>{head}</tr></thead><tbody>{rows}</tbody></table></div></details></div>"
        )


def _cell(text: str) -> str:
    return html.escape(text.replace(" ", "␣")) or "nothing"
