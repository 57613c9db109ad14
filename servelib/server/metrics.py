"""The server's signals for Prometheus, on a registry of their own.

Words as everywhere in this package: TTFT from arrival to the first token; a gap between two token events
of one request, a burst of n tokens being one gap and n-1 zeros; E2E from arrival to the last token, of
requests that ended as asked. At any time: started = finished + running + waiting.
"""

from __future__ import annotations

from collections.abc import Callable

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram
from prometheus_client.exposition import CONTENT_TYPE_PLAIN_0_0_4, generate_latest

from servelib.server.ledger import Life, Outcome

CONTENT_TYPE = CONTENT_TYPE_PLAIN_0_0_4
_GAPS = (0.001, 0.0025, 0.005, 0.01, 0.02, 0.035, 0.05, 0.075, 0.1, 0.15, 0.25, 0.5, 1.0, 2.5, 10.0)
_WAITS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.0, 4.0, 8.0, 15.0, 30.0, 60.0, 120.0, 300.0)


class Metrics:
    """Counts what the ledger tells, and writes it down when asked."""

    def __init__(self) -> None:
        self.registry = registry = CollectorRegistry(auto_describe=False)
        self._started = Counter(
            "servelib_requests_started", "Requests (choices) that came", registry=registry
        )
        finished = Counter(
            "servelib_requests_finished",
            "Requests (choices) that ended, by reason",
            ["reason"],
            registry=registry,
        )
        self._finished = {outcome: finished.labels(outcome.value) for outcome in Outcome}
        self._prompt = Counter(
            "servelib_prompt_tokens", "Prompt tokens of requests that began", registry=registry
        )
        self._generated = Counter("servelib_generation_tokens", "Tokens generated", registry=registry)
        self._queue = _histogram(
            "queue", "From arrival to the step that gave the first token", _WAITS, registry
        )
        self._ttft = _histogram("time_to_first_token", "From arrival to the first token", _WAITS, registry)
        self._gap = _histogram("inter_token_gap", "Between token events of one request", _GAPS, registry)
        self._e2e = _histogram("e2e", "From arrival to the last token", _WAITS, registry)

    def watch(self, *, running: Callable[[], int], waiting: Callable[[], int]) -> None:
        """Read these two whenever the signals are asked for."""
        for name, read, text in (
            ("running", running, "Requests (choices) that have a token and are not over"),
            ("waiting", waiting, "Requests (choices) without a token yet: in the queue or in prefill"),
        ):
            Gauge(f"servelib_requests_{name}", text, registry=self.registry).set_function(read)

    def started(self, life: Life) -> None:
        """See ``Observer``."""
        self._started.inc()

    def tokens(self, life: Life, count: int, gap: float | None) -> None:
        """See ``Observer``."""
        self._generated.inc(count)
        if gap is not None:
            self._gap.observe(gap)
        else:
            assert life.began is not None
            assert life.first is not None
            self._prompt.inc(len(life.request.prompt_ids))
            self._queue.observe(max(0.0, life.began - life.arrived))
            self._ttft.observe(life.first - life.arrived)
        for _ in range(count - 1):
            self._gap.observe(0.0)

    def finished(self, life: Life) -> None:
        """See ``Observer``."""
        assert life.outcome is not None
        self._finished[life.outcome].inc()
        if life.outcome in (Outcome.STOP, Outcome.LENGTH) and life.last is not None:
            self._e2e.observe(life.last - life.arrived)

    def text(self) -> bytes:
        """All of it in Prometheus's text format."""
        return generate_latest(self.registry)


def _histogram(name: str, text: str, bounds: tuple[float, ...], registry: CollectorRegistry) -> Histogram:
    return Histogram(f"servelib_{name}_seconds", text, buckets=bounds, registry=registry)
