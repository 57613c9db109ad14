"""Rotary positions beyond the trained context, as Llama 3 reaches them."""

from __future__ import annotations

import math

from torch import Tensor

from servelib.model.config import RopeScaling


def stretched(turns: Tensor, scaling: RopeScaling | None) -> Tensor:
    """The radians a token of each pair, [D/2], after ``scaling``; as they were without one.

    Pairs that turn fast tell near tokens apart and stay. Pairs too slow to turn once in the trained
    context would meet angles they have never seen, and slow down by the factor. See ``RopeScaling``.
    """
    if scaling is None:
        return turns
    seen = turns * scaling.original_context / (2 * math.pi)  # full turns in the trained context
    kept = ((seen - scaling.low_turns) / (scaling.high_turns - scaling.low_turns)).clamp(0, 1)
    return turns * (kept + (1 - kept) / scaling.factor)
