"""The one random number a token needs, computed from its seed and its place. No generator to carry.

Because the number depends on (seed, position) alone, a request's tokens are the same whatever else
is running, in whichever engine, and after a preemption or a restart.
"""

from __future__ import annotations

_MASK = 2**64 - 1
_GOLDEN = 0x9E3779B97F4A7C15  # 2**64 / golden ratio: successive multiples are spread evenly


def uniform(seed: int, position: int) -> float:
    """A number in [0, 1) for output token ``position`` of the request with 64-bit ``seed``.

    Two rounds of splitmix64 (Steele, Lea, Flood 2014): the first scatters neighbouring seeds, so
    that seed 1 is not seed 0 moved along by one; the second scatters positions.
    """
    start = _mix(seed + _GOLDEN)
    return (_mix(start + (position + 1) * _GOLDEN) >> 11) * 2.0**-53  # 53 bits: all that a float holds


def _mix(x: int) -> int:
    x &= _MASK
    x = ((x ^ (x >> 30)) * 0xBF58476D1CE4E5B9) & _MASK
    x = ((x ^ (x >> 27)) * 0x94D049BB133111EB) & _MASK
    return x ^ (x >> 31)
