"""One server and its line: an engine whose service times are chosen, the theory, and a quick simulation.

Words: ``utilisation`` is arrival rate times mean service time; ``cv2`` is the squared coefficient of
variation of a time, its variance over its squared mean: 0 for one that is always the same, 1 for an
exponential one. Waits are times in the line, the service itself not counted. The theory is that of
Harchol-Balter, Performance Modeling and Design of Computer Systems (2013). Standard library only.
"""

from __future__ import annotations

import math
import random
from collections import deque
from collections.abc import Callable, Sequence
from itertools import pairwise
from statistics import fmean

from servelib.clock import Clock
from servelib.errors import InvalidRequestError, check_float, check_int
from servelib.harness.arrivals import Gamma, Poisson
from servelib.harness.stats import Estimate, t_interval
from servelib.harness.trace import stream_rng
from servelib.model.scripted import ScriptedModel
from servelib.request import FinishReason, Request, SampledToken, StepOutput

_TOKEN = SampledToken(ord("a"))


class ServiceEngine:
    """An engine that serves one request at a time, in arrival order, for as long as it is told.

    One step is one whole service: it lets ``seconds_of(request)`` seconds pass on ``clock`` and
    returns all of the request's tokens in one event. It works on any clock.
    """

    name = "single server"

    def __init__(self, clock: Clock, seconds_of: Callable[[Request], float]) -> None:
        self.model = ScriptedModel([_TOKEN.token_id])
        self._clock = clock
        self._seconds_of = seconds_of
        self._line: deque[Request] = deque()

    @property
    def has_work(self) -> bool:
        """Whether anyone is in the line."""
        return bool(self._line)

    def add_request(self, request: Request) -> None:
        """Put a request at the end of the line. Raises ``InvalidRequestError``."""
        config = self.model.config
        request.check_against(vocab_size=config.vocab_size, context=config.context)
        self._line.append(request)

    def step(self) -> list[StepOutput]:
        """Serve the head of the line, from beginning to end."""
        if not self._line:
            return []
        request = self._line.popleft()
        self._clock.sleep_until(self._clock.now() + self._seconds_of(request))
        tokens = (_TOKEN,) * request.sampling.max_tokens
        return [StepOutput(request.request_id, tokens, FinishReason.LENGTH)]

    def abort(self, request_id: str) -> None:
        """Take a request out of the line. An unknown or finished id has no effect."""
        self._line = deque(request for request in self._line if request.request_id != request_id)


def utilisation_of(arrival_rate: float, mean_service: float) -> float:
    """The share of time for which the server is busy, below 1.

    Raises ``InvalidRequestError`` at 1 or above: there is no mean wait then, the line grows as long
    as you look.
    """
    check_float("arrival rate", arrival_rate, 0.0)
    check_float("mean service time", mean_service, 0.0, low_open=True)
    return _below_one(arrival_rate * mean_service)


def mg1_wait(arrival_rate: float, mean_service: float, cv2: float) -> float:
    """Mean wait in seconds with Poisson arrivals and any law of service (M/G/1).

    Pollaczek and Khinchine: W = rho / (1 - rho) * (1 + cv2) / 2 * E[S] (Harchol-Balter 2013, chapter
    23). Of the service law only its mean and its spread enter.
    """
    return gg1_wait(arrival_rate, mean_service, 1.0, cv2)


def mm1_wait(arrival_rate: float, mean_service: float) -> float:
    """Mean wait in seconds with Poisson arrivals and exponential service (M/M/1): cv2 = 1."""
    return mg1_wait(arrival_rate, mean_service, 1.0)


def md1_wait(arrival_rate: float, mean_service: float) -> float:
    """Mean wait in seconds with Poisson arrivals and a fixed service time (M/D/1): half of M/M/1."""
    return mg1_wait(arrival_rate, mean_service, 0.0)


def gg1_wait(arrival_rate: float, mean_service: float, arrival_cv2: float, cv2: float) -> float:
    """Mean wait in seconds with arrivals of any spread, approximately (G/G/1).

    Kingman (1961): W = rho / (1 - rho) * (arrival_cv2 + cv2) / 2 * E[S], right in the limit of heavy
    traffic, and exact at any load for Poisson arrivals (arrival_cv2 = 1).
    """
    check_float("spread of gaps, cv2", arrival_cv2, 0.0)
    check_float("spread of service times, cv2", cv2, 0.0)
    rho = utilisation_of(arrival_rate, mean_service)
    return rho / (1.0 - rho) * (arrival_cv2 + cv2) / 2.0 * mean_service


def mm1_wait_tail(seconds: float, arrival_rate: float, mean_service: float) -> float:
    """P(wait > ``seconds``) in M/M/1: rho * exp(-(mu - lambda) * t). At 0: the share that waits at all."""
    rho = utilisation_of(arrival_rate, mean_service)
    return rho * mm1_time_tail(seconds, arrival_rate, mean_service)


def mm1_time_tail(seconds: float, arrival_rate: float, mean_service: float) -> float:
    """P(wait + service > ``seconds``) in M/M/1: exp(-(mu - lambda) * t), an exponential law again."""
    check_float("seconds", seconds, 0.0)
    rho = utilisation_of(arrival_rate, mean_service)
    return math.exp(-(1.0 - rho) / mean_service * seconds)


def service_times(n: int, mean: float, cv2: float, rng: random.Random) -> list[float]:
    """``n`` independent times of mean ``mean`` and squared coefficient of variation ``cv2``.

    0: always the mean. 1: exponential. Else gamma of shape 1/cv2. Another mean scales the same
    draws. Raises ``InvalidRequestError`` on a value out of range.
    """
    check_int("customers", n, 1)
    check_float("mean service time", mean, 0.0, low_open=True)
    check_float("spread of service times, cv2", cv2, 0.0)
    if cv2 == 0:
        return [mean] * n
    law = Poisson(1.0) if cv2 == 1 else Gamma(1.0, 1.0 / cv2)
    return [mean * (later - earlier) for earlier, later in pairwise([0.0, *law.times(n, rng)])]


def service_starts(arrivals: Sequence[float], services: Sequence[float]) -> list[float]:
    """When each service begins, one server, first come first served (Lindley 1952, in clock time).

    A service begins when its customer has come and the one before has left. This is what
    ``ServiceEngine`` does step by step, to the last bit. ``start - arrival`` is the wait.
    """
    starts = []
    free = 0.0
    for arrival, service in zip(arrivals, services, strict=True):
        start = arrival if arrival > free else free
        starts.append(start)
        free = start + service
    return starts


class WaitSimulation:
    """Poisson arrivals at one server whose service times have spread ``cv2``, drawn once, served often.

    All times are in units of the mean service time. Each of ``runs`` runs serves ``warmup`` customers
    that are not counted and then ``customers`` that are; run k is drawn with seed + k, arrivals and
    services from streams of their own. Two utilisations see the same customers, only closer together,
    so a curve is smooth; its points are not independent of each other.
    """

    def __init__(
        self, cv2: float, *, customers: int = 20_000, warmup: int = 4_000, runs: int = 5, seed: int = 7
    ) -> None:
        check_int("customers", customers, 1)
        check_int("warm-up customers", warmup, 0)
        check_int("runs", runs, 2)  # one run has no interval
        self.cv2 = cv2
        self.customers, self.warmup = customers, warmup
        n = warmup + customers
        self._draws = [
            (
                Poisson(1.0).times(n, stream_rng(seed + run, "arrivals")),
                service_times(n, 1.0, cv2, stream_rng(seed + run, "services")),
            )
            for run in range(runs)
        ]

    def mean_wait(self, utilisation: float) -> Estimate:
        """The mean wait over mean service time, with Student's 95 % interval across the runs.

        Raises ``InvalidRequestError`` unless 0 < utilisation < 1.
        """
        check_float("utilisation", utilisation, 0.0, low_open=True)
        _below_one(utilisation)
        means = [self._run(units, services, utilisation) for units, services in self._draws]
        low, high = t_interval(means, lowest=0.0) or (None, None)
        return Estimate(fmean(means), low, high, n=len(means), samples=len(means) * self.customers)

    def _run(self, units: Sequence[float], services: Sequence[float], utilisation: float) -> float:
        arrivals = [unit / utilisation for unit in units]
        starts = service_starts(arrivals, services)
        return (math.fsum(starts[self.warmup :]) - math.fsum(arrivals[self.warmup :])) / self.customers


def _below_one(utilisation: float) -> float:
    if utilisation >= 1.0:
        limit = "below 1: from there on the line only grows. Lower the arrival rate or the service time"
        raise InvalidRequestError("utilisation", round(utilisation, 6), limit)
    return utilisation
