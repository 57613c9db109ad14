"""Proof 2: a single server behind the driver waits as queueing theory says it must."""

from __future__ import annotations

import math
from statistics import fmean

import pytest
from queues import SingleServer, exponential

from servelib.clock import VirtualClock
from servelib.harness.arrivals import Poisson
from servelib.harness.drive import drive
from servelib.harness.lengths import Fixed
from servelib.harness.metrics import e2e
from servelib.harness.stats import t_interval
from servelib.harness.trace import make_trace

SERVICE = 0.1  # seconds
RUNS, REQUESTS, WARMUP = 12, 4000, 300


def latencies(rho: float, seconds, seed: int) -> list[float]:
    trace = make_trace(Poisson(rho / SERVICE), REQUESTS, prompt=Fixed(1), output=Fixed(1), seed=seed)
    clock = VirtualClock()
    run = drive(SingleServer(clock, seconds), trace, clock)
    return [e2e(record) for record in run.requests[WARMUP:]]


def holds(values: list[float], truth: float) -> None:
    low, high = t_interval(values, confidence=0.99)
    assert low <= truth <= high
    assert (high - low) / truth < 0.9  # an interval that holds everything proves nothing


@pytest.mark.parametrize("rho", [0.3, 0.6, 0.8])
def test_m_d_1_waits(rho):
    """Pollaczek and Khinchine: rho S / (2 (1 - rho)) in the queue, and S in service."""
    runs = [fmean(latencies(rho, lambda _: SERVICE, seed)) - SERVICE for seed in range(RUNS)]
    holds(runs, rho * SERVICE / (2 * (1 - rho)))


@pytest.mark.parametrize("rho", [0.3, 0.6, 0.8])
def test_m_m_1_waits_twice_as_long_and_its_tail_is_exponential(rho):
    runs = [latencies(rho, exponential(SERVICE), seed) for seed in range(RUNS)]
    mean = SERVICE / (1 - rho)  # time in the system
    holds([fmean(run) for run in runs], mean)
    for multiple in (1.0, 2.0):
        tail = [sum(x > multiple * mean for x in run) / len(run) for run in runs]
        holds(tail, math.exp(-multiple))
