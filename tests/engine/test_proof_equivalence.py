"""Any engine gives each surviving request the naive engine's tokens: whatever else runs, leaves or waits."""

from __future__ import annotations

from typing import Any

import pytest
from histories import ANY_MODEL, TEXT_ONLY, Seen, histories, naive, play
from hypothesis import given, settings
from textmodel import SMALL, TextModel

MODEL = TextModel()


def check(model: Any, seen: Seen) -> None:
    for name, request in seen.requests.items():
        tokens, reason = naive(model, request)
        if name in seen.aborted:
            assert seen.tokens[name] == tokens[: len(seen.tokens[name])]
        else:
            assert (seen.tokens[name], seen.reasons[name]) == (tokens, reason)


@pytest.mark.parametrize("name", [*ANY_MODEL, *TEXT_ONLY])
def test_any_engine_gives_the_naive_engines_tokens(name: str):
    make = {**ANY_MODEL, **TEXT_ONLY}[name]

    @settings(deadline=None, derandomize=True, max_examples=60)
    @given(histories(SMALL.vocab_size))
    def any_history(history: list[Any]) -> None:
        check(MODEL, play(make(MODEL), history))

    any_history()
