"""What HTTP adds: the same trace in process and over HTTP, request by request."""

from __future__ import annotations

from dataclasses import dataclass
from statistics import fmean

from servelib.errors import InvalidRequestError
from servelib.harness.records import RunRecord
from servelib.harness.stats import Estimate, t_interval


@dataclass(frozen=True, slots=True)
class Transport:
    """Seconds that each request took longer over HTTP, and their means with a paired t interval.

    Connecting, both ways of the network, the server's web layer and the client's reading are all in it.
    """

    ttfts: list[float]
    e2es: list[float]
    ttft: Estimate
    e2e: Estimate


def transport(inside: RunRecord, outside: RunRecord) -> Transport:
    """Compare two runs of one trace. Only requests that succeeded both ways count.

    Raises ``InvalidRequestError`` if the traces differ, or a request's token counts.
    """
    if outside.trace_hash != inside.trace_hash:
        raise InvalidRequestError("trace", outside.trace_hash, f"the same in both runs, {inside.trace_hash}")
    pairs = [(a, b) for a, b in zip(inside.requests, outside.requests, strict=True) if a.ok and b.ok]
    for here, there in pairs:
        if here.output_tokens != there.output_tokens:
            limit = f"{here.output_tokens} as in process ({here.request_id})"
            raise InvalidRequestError("output_tokens", there.output_tokens, limit)
    seen = [(here, there) for here, there in pairs if here.events]
    first = [there.events[0][0] - here.events[0][0] for here, there in seen]  # both from one schedule
    last = [there.events[-1][0] - here.events[-1][0] for here, there in seen]
    return Transport(first, last, _mean(first), _mean(last))


def _mean(values: list[float]) -> Estimate:
    low, high = t_interval(values) or (None, None)
    return Estimate(fmean(values) if values else None, low, high, n=len(values), samples=len(values))
