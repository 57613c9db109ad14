"""One server and its line: theory, the quick simulation, and the engine agree."""

from __future__ import annotations

import math
import random
from statistics import fmean, pvariance

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from servelib.clock import VirtualClock
from servelib.errors import InvalidRequestError
from servelib.harness.arrivals import Poisson
from servelib.harness.drive import drive
from servelib.harness.records import Outcome
from servelib.harness.trace import Uniform, make_trace
from servelib.request import FinishReason, Request, SamplingParams
from servelib.sim import queueing as q


@pytest.mark.parametrize("cv2", [0, 0.5, 1, 4])
@pytest.mark.parametrize("utilisation", [0.3, 0.8, 1.2])
def test_the_recursion_is_the_engine_under_the_harness_to_the_last_bit(cv2, utilisation):
    trace = make_trace(Poisson(utilisation), 400, prompt=Uniform(1, 1), output=Uniform(1, 3), seed=3)
    services = q.service_times(400, 1.0, cv2, random.Random(5))
    arrivals = [request.scheduled for request in trace.requests]
    starts = q.service_starts(arrivals, services)

    clock = VirtualClock()
    of = dict(zip((r.request_id for r in trace.requests), services, strict=True))
    run = drive(q.ServiceEngine(clock, lambda request: of[request.request_id]), trace, clock)

    ends = [start + service for start, service in zip(starts, services, strict=True)]
    assert [record.events for record in run.requests] == [
        [(end, request.output_tokens)] for end, request in zip(ends, trace.requests, strict=True)
    ]
    assert all(record.outcome is Outcome.OK for record in run.requests)


@settings(deadline=None, derandomize=True, max_examples=50)
@given(st.lists(st.tuples(st.floats(0, 10), st.floats(0, 5)), min_size=1, max_size=30))
def test_lindley(customers):
    gaps, services = zip(*customers, strict=True)
    arrivals = [math.fsum(gaps[: i + 1]) for i in range(len(gaps))]
    starts = q.service_starts(arrivals, services)
    wait = 0.0
    for i, start in enumerate(starts):
        if i:
            wait = max(0.0, wait + services[i - 1] - (arrivals[i] - arrivals[i - 1]))
        assert start - arrivals[i] == pytest.approx(wait, abs=1e-9)


def test_by_hand():
    assert q.service_starts([0.0, 0.3, 0.6, 5.0], [0.5] * 4) == [0.0, 0.5, 1.0, 5.0]


def test_an_engine_of_one_server():
    clock = VirtualClock(10.0)
    engine = q.ServiceEngine(clock, lambda request: 2.0)
    assert not engine.has_work
    assert engine.step() == []
    for name in "abc":
        engine.add_request(Request(name, (40,), SamplingParams(max_tokens=3)))
    engine.abort("b")
    engine.abort("nobody")
    (first,) = engine.step()
    assert (first.request_id, len(first.tokens), first.finish_reason) == ("a", 3, FinishReason.LENGTH)
    assert clock.now() == 12.0
    assert engine.step()[0].request_id == "c"
    assert not engine.has_work
    with pytest.raises(InvalidRequestError, match="max_tokens"):
        engine.add_request(Request("d", (40,), SamplingParams(max_tokens=5000)))


def test_the_theory_at_points_worked_out_by_hand():
    # mu = 2/s, lambda = 1/s: rho = 1/2.
    assert q.mm1_wait(1.0, 0.5) == pytest.approx(0.5)
    assert q.md1_wait(1.0, 0.5) == pytest.approx(0.25)
    assert q.mg1_wait(1.0, 0.5, 3.0) == pytest.approx(1.0)
    assert q.mm1_wait(0.0, 0.5) == 0.0
    assert q.gg1_wait(1.0, 0.5, 0.0, 0.0) == 0.0  # like clockwork: nobody waits
    assert q.mm1_wait_tail(0.0, 1.0, 0.5) == 0.5
    assert q.mm1_time_tail(math.log(10), 1.0, 0.5) == pytest.approx(0.1)
    # The mean is the area under the tail.
    area = sum(q.mm1_wait_tail((i + 0.5) / 100, 1.0, 0.5) / 100 for i in range(3000))
    assert area == pytest.approx(q.mm1_wait(1.0, 0.5), rel=1e-4)


@pytest.mark.parametrize("cv2", [0.0, 0.25, 0.5, 1.0, 2.0, 4.0])
def test_service_times_have_the_mean_and_the_spread_asked_for(cv2):
    times = q.service_times(40_000, 0.5, cv2, random.Random(1))
    assert min(times) >= 0
    assert fmean(times) == pytest.approx(0.5, abs=4 * 0.5 * math.sqrt(cv2 / 40_000))
    assert pvariance(times) / 0.25 == pytest.approx(cv2, rel=0.1)


def test_another_mean_scales_the_same_draws():
    for cv2 in (0.0, 1.0, 2.0):
        one, three = (q.service_times(50, mean, cv2, random.Random(1)) for mean in (1.0, 3.0))
        assert three == [3.0 * time for time in one]


@pytest.mark.parametrize("cv2", [0.0, 0.5, 1.0, 2.0])
def test_the_simulation_finds_the_theory(cv2):
    simulation = q.WaitSimulation(cv2)
    for utilisation in (0.3, 0.6, 0.8):
        wait = simulation.mean_wait(utilisation)
        assert wait.low <= q.mg1_wait(utilisation, 1.0, cv2) <= wait.high
        assert wait.high - wait.low < 0.5 * wait.value
        assert (wait.n, wait.samples) == (5, 100_000)


def test_the_tail_of_exponential_service():
    arrivals = Poisson(0.6).times(40_000, random.Random(2))
    starts = q.service_starts(arrivals, q.service_times(40_000, 1.0, 1.0, random.Random(3)))
    waits = [start - arrival for start, arrival in zip(starts, arrivals, strict=True)]
    for seconds in (0.0, 1.0, 4.0):
        share = sum(wait > seconds for wait in waits) / len(waits)
        assert share == pytest.approx(q.mm1_wait_tail(seconds, 0.6, 1.0), rel=0.08)


def test_the_mean_wait_of_a_run_is_that_of_the_customers_after_warm_up():
    simulation = q.WaitSimulation(0.0, customers=3, warmup=2, runs=2, seed=0)
    means = []
    for run in range(2):
        arrivals = [unit / 0.9 for unit in simulation._draws[run][0]]
        starts = q.service_starts(arrivals, [1.0] * 5)
        means.append(fmean(s - a for s, a in list(zip(starts, arrivals, strict=True))[2:]))
    assert simulation.mean_wait(0.9).value == pytest.approx(fmean(means))


def test_the_same_seed_gives_the_same_answer_and_another_does_not():
    small = {"customers": 200, "warmup": 0, "runs": 2}
    first, again, other = (q.WaitSimulation(1.0, seed=s, **small).mean_wait(0.5) for s in (0, 0, 1))
    assert first == again
    assert first.value != other.value


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: q.mm1_wait(2.0, 0.5), "utilisation: got 1.0, must be below 1"),
        (lambda: q.mm1_wait(-1.0, 0.5), "arrival rate"),
        (lambda: q.md1_wait(1.0, 0.0), "mean service time"),
        (lambda: q.mg1_wait(1.0, 0.5, -0.1), "spread of service times"),
        (lambda: q.gg1_wait(1.0, 0.5, math.nan, 1.0), "spread of gaps"),
        (lambda: q.mm1_wait_tail(-1.0, 1.0, 0.5), "seconds"),
        (lambda: q.service_times(0, 1.0, 1.0, random.Random(0)), "customers"),
        (lambda: q.WaitSimulation(1.0, runs=1), "runs"),
        (lambda: q.WaitSimulation(1.0, customers=0, warmup=0), "customers"),
        (lambda: q.WaitSimulation(-1.0), "spread"),
        (lambda: q.WaitSimulation(1.0, customers=5, warmup=0).mean_wait(1.0), "below 1"),
        (lambda: q.WaitSimulation(1.0, customers=5, warmup=0).mean_wait(0.0), "> 0"),
    ],
)
def test_what_has_no_answer_is_refused_with_the_limit(call, message):
    with pytest.raises(InvalidRequestError, match=message):
        call()
