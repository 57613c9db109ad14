"""The signals say exactly what happened, in the words of the rest of the package."""

import asyncio

import pytest
from serving import COMPLETION, ids, serving

from servelib.clock import VirtualClock
from servelib.request import FinishReason, Request, SampledToken, StepOutput
from servelib.server.ledger import Ledger, Outcome
from servelib.server.mailbox import Mailbox
from servelib.server.metrics import Metrics


def output(name, tokens, reason=None):
    return StepOutput(name, (SampledToken(1),) * tokens, reason)


@pytest.fixture
def told():
    """The signals after one life on a virtual clock, asked by name."""
    metrics, clock = Metrics(), VirtualClock()

    async def life():
        ledger = Ledger(
            max_waiting=9, timeout=1e6, clock=clock, observer=metrics, on_timeout=lambda request_id: None
        )
        clock.advance(10.0)
        ledger.admit([Request("a", (1, 2, 3))], Mailbox(), arrived=9.0)
        ledger.admit([Request("b", (1,)), Request("c", (1,))], Mailbox(2), arrived=None)
        ledger.deliver([output("a", 1)], began=11.0, ended=13.0)
        ledger.deliver([output("a", 3)], began=13.0, ended=13.5)  # a burst
        ledger.deliver([output("a", 1, FinishReason.STOP)], began=13.5, ended=14.5)
        ledger.deliver([output("a", 1)], began=14.5, ended=15.0)  # for nobody
        ledger.end("b", Outcome.ABORT)
        ledger.deliver([output("c", 0, FinishReason.ERROR)], began=15.0, ended=16.0)
        assert (ledger.waiting, ledger.running) == (0, 0)

    asyncio.run(life())

    def value(name, **labels):
        return metrics.registry.get_sample_value(f"servelib_{name}", labels)

    return value


@pytest.mark.parametrize(
    ("name", "count", "total"),
    [
        ("queue", 1, 11.0 - 9.0),
        ("time_to_first_token", 1, 13.0 - 9.0),
        ("inter_token_gap", 4, 14.5 - 13.0),  # 0.5 and two zeros, then 1.0
        ("e2e", 1, 14.5 - 9.0),  # of the one that ended as asked
    ],
)
def test_times_run_from_the_arrival_and_between_token_events(told, name, count, total):
    assert told(f"{name}_seconds_count") == count
    assert told(f"{name}_seconds_sum") == pytest.approx(total, abs=1e-9)


def test_a_burst_is_one_gap_and_zeros(told):
    assert told("inter_token_gap_seconds_bucket", le="0.001") == 2
    assert told("inter_token_gap_seconds_bucket", le="0.5") == 3
    assert told("inter_token_gap_seconds_bucket", le="1.0") == 4


def test_tokens_and_ends_are_counted_once(told):
    assert told("requests_started_total") == 3
    assert told("prompt_tokens_total") == 3
    assert told("generation_tokens_total") == 5
    ends = {outcome: told("requests_finished_total", reason=outcome.value) for outcome in Outcome}
    once = {Outcome.STOP, Outcome.ABORT, Outcome.ERROR}
    assert ends == {outcome: float(outcome in once) for outcome in Outcome}


def test_over_http_each_server_has_signals_of_its_own():
    with serving(ids("ab")) as busy, serving(ids("ab")) as idle:
        busy.post("/v1/completions", COMPLETION)
        busy.post("/v1/completions", {**COMPLETION, "stop": "b"})
        with busy.client.completions.with_streaming_response.create(**COMPLETION, max_tokens=1) as response:
            response.read()
        signals = busy.metrics()
        reason = 'servelib_requests_finished_total{{reason="{}"}}'.format
        assert (signals[reason("stop")], signals[reason("length")], signals[reason("abort")]) == (2, 1, 0)
        assert signals["servelib_generation_tokens_total"] >= 3 + 2 + 1  # the engine may be a step further
        assert signals["servelib_requests_running"] == signals["servelib_requests_waiting"] == 0
        assert idle.metrics()["servelib_requests_started_total"] == 0
