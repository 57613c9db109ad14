"""Arrival laws by the names that the command line gives them."""

from __future__ import annotations

import math
from pathlib import Path

from servelib.errors import InvalidRequestError
from servelib.harness.arrivals import AtOnce, Constant, Gamma, Poisson, Replay
from servelib.harness.lines import is_file
from servelib.harness.trace import Trace
from servelib.harness.trace_files import read_trace
from servelib.harness.varying import Piecewise, Ramp

NAMES = "poisson, constant, gamma:B, ramp:A-B, piecewise:RxS,RxS or a file"


Law = Poisson | Gamma | Constant | AtOnce | Ramp | Piecewise | Replay


def arrivals_from(text: str, rate: float) -> Law:
    """The law called ``text`` at ``rate`` requests/s.

    ``poisson``; ``constant``; ``gamma:0.5``, burstiness 0.5; ``ramp:2-8``, from 2 to 8 requests/s;
    ``piecewise:4x60,16x10``, 4 requests/s for 60 s and then 16 for 10 s; or a file, whose times are
    replayed. The last three have rates of their own. An infinite ``rate`` brings everything at time
    0, whatever the law. Raises ``InvalidRequestError``.
    """
    name, colon, detail = text.partition(":")
    if name == "ramp" and colon:
        return Ramp(*_numbers(text, detail, "-", "ramp:A-B, such as ramp:2-8"))
    if name == "piecewise" and colon:
        wanted = "piecewise:RATExSECONDS,..., such as piecewise:4x60,16x10"
        return Piecewise(tuple(_numbers(text, part, "x", wanted) for part in detail.split(",")))
    if (name == "gamma" and colon) or text in ("poisson", "constant"):
        if name == "gamma":
            (burstiness,) = _parsed(text, [detail], "gamma:B, such as gamma:0.5")
            law = Gamma(1.0 if rate == math.inf else rate, burstiness)
        if rate == math.inf:
            return AtOnce()
        if name == "gamma":
            return law
        return Poisson(rate) if name == "poisson" else Constant(rate)
    if not is_file(text):
        raise InvalidRequestError("arrivals", text, NAMES)
    found = read_trace(Path(text))
    if isinstance(found, Trace):
        return Replay(tuple(r.scheduled for r in found.requests), found.arrivals)
    return found


def _numbers(text: str, part: str, separator: str, wanted: str) -> tuple[float, float]:
    pieces = part.split(separator)
    if len(pieces) != 2:
        raise InvalidRequestError("arrivals", text, wanted)
    first, second = _parsed(text, pieces, wanted)
    return first, second


def _parsed(text: str, pieces: list[str], wanted: str) -> list[float]:
    try:
        return [float(piece) for piece in pieces]
    except ValueError:
        raise InvalidRequestError("arrivals", text, wanted) from None
