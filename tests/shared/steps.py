"""Requests cut into the steps of flat batches, for every cache that holds them."""

from __future__ import annotations

from collections.abc import Sequence

from hypothesis import strategies as st

Steps = list[list[tuple[int, int, int]]]
"""Steps as lists of (request, new tokens, samples)."""


def cut(draw: st.DrawFn, lengths: Sequence[int]) -> Steps:
    """Requests of these lengths, whole, in pieces or token by token, in any order and company."""
    left, steps = list(lengths), []
    while any(left):
        step = []
        for i in draw(st.permutations(range(len(left)))):
            if left[i] and draw(st.integers(0, 3)) < 3:
                new = draw(st.one_of(st.just(left[i]), st.just(1), st.integers(1, left[i])))
                step.append((i, new, draw(st.integers(0, new))))
                left[i] -= new
        steps.append(step)
    return [step for step in steps if step]
