"""The errors a caller can cause, and the checks that raise them."""

from __future__ import annotations

import math
import sys


class InvalidRequestError(ValueError):
    """A request that can never be served, refused before it costs anything.

    Carries the ``field`` at fault, the offending ``value`` and the ``limit`` it broke, so that a
    server can answer 400 with the parameter's name and a person can see the way out.
    """

    def __init__(self, field: str, value: object, limit: str) -> None:
        self.field = field
        self.value = value
        self.limit = limit
        try:
            shown = repr(value)
        except ValueError:  # Python refuses to print an integer of more than 4,300 digits
            shown = "an integer of thousands of digits"
        if len(shown) > 80:
            shown = shown[:77] + "..."
        super().__init__(f"{field}: got {shown}, must be {limit}")


class PretrainedError(ValueError):
    """A checkpoint or a tokenizer that cannot be read, or that this code cannot run; one line says why."""

    def __init__(self, message: str) -> None:
        super().__init__(" ".join(message.split()))


class KernelError(ValueError):
    """Kernels that cannot be compiled here, or that this model cannot use; one line says why."""

    def __init__(self, message: str) -> None:
        super().__init__(" ".join(message.split()))


def check_int(name: str, value: object, low: int, high: int | None = None, *, why: str = "") -> None:
    """Raise ``InvalidRequestError`` unless ``value`` is an integer (not a bool) in [low, high].

    ``why`` names the reason for ``high`` where it is not obvious.
    """
    limit = f"an integer >= {low}" if high is None else f"an integer from {low} to {high}"
    limit += f" ({why})" if why else ""
    if not isinstance(value, int) or isinstance(value, bool) or value < low:
        raise InvalidRequestError(name, value, limit)
    if high is not None and value > high:
        raise InvalidRequestError(name, value, limit)


def check_float(
    name: str, value: object, low: float, high: float | None = None, *, low_open: bool = False
) -> None:
    """Raise ``InvalidRequestError`` unless ``value`` is a finite number (not a bool) in range."""
    above = f"> {low:g}" if low_open else f">= {low:g}"
    limit = f"a finite number {above}" + ("" if high is None else f" and <= {high:g}")
    if not isinstance(value, int | float) or isinstance(value, bool):
        raise InvalidRequestError(name, value, limit)
    # Compared before isfinite: that raises OverflowError on an integer no float can hold.
    if abs(value) > sys.float_info.max or not math.isfinite(value):
        raise InvalidRequestError(name, value, limit)
    if value < low or (low_open and value == low) or (high is not None and value > high):
        raise InvalidRequestError(name, value, limit)
