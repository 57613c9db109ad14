"""The lab: settings in, everything that the lab page shows out, as plain data. Standard library only.

The book's page runs this file in the browser; a test runs it here and compares. What a person can set
is listed once, in ``fields``: the page makes its form from it.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

from servelib.engine.registry import ENGINES
from servelib.errors import InvalidRequestError, check_float, check_int
from servelib.harness.metrics import SLO, gaps, meets, samples, ttft
from servelib.harness.records import RunRecord
from servelib.harness.report import COLUMNS
from servelib.harness.stats import percentile
from servelib.harness.summary import summarise
from servelib.harness.trace import Uniform
from servelib.sim.machines import REFERENCE_MACHINE, machines
from servelib.sim.models import REFERENCE_MODEL, models
from servelib.sim.occupancy import Filled, Life, occupancy
from servelib.sim.simulate import Settings, Simulated, curve, replay

MOST_REQUESTS = 2_000
MOST_TOKENS = 400_000  # of one run, at worst: some seconds in a browser
MOST_AT_ONCE = 1_024
QUANTILES = 200
MOMENTS = 400  # at which the cache is shown

BATCH_OPTIONS = {"static": "batch_size", "continuous": "max_num_seqs"}

Judged = list[tuple[float, float]]
"""Of each request that succeeded: its TTFT and its longest gap, in seconds."""


@dataclass(frozen=True, slots=True)
class Field:
    """One setting: its name in addresses, its label, and what it may be (a choice, or a number).

    ``choices`` are (value, what a person reads). ``engines``: those that have it; all, if empty.
    """

    name: str
    label: str
    default: float | str
    choices: tuple[tuple[str, str], ...] = ()
    low: float = 0.0
    high: float = 0.0
    whole: bool = False
    engines: tuple[str, ...] = ()


def fields() -> list[dict[str, Any]]:
    """Every setting as plain data, in the order of the form."""
    return [asdict(field) for field in _fields()]


def _fields() -> tuple[Field, ...]:
    known_models = tuple((name, config.label) for name, config in models().items())
    known_machines = tuple((name, machine.name) for name, machine in machines().items())
    return (
        Field("rate", "arrival rate, requests/s", 2.0, low=0.01, high=10_000.0),
        Field("engine", "engine", next(iter(ENGINES)), tuple((name, name) for name in ENGINES)),
        Field("batch", "at once, at most", 16, (), 1, MOST_AT_ONCE, True, tuple(BATCH_OPTIONS)),
        Field("requests", "requests", 200, low=1, high=MOST_REQUESTS, whole=True),
        Field("slo_ttft", "SLO: first token, s", 1.0, low=0.0001, high=10_000.0),
        Field("slo_gap", "SLO: every gap, s", 0.05, low=0.0001, high=1_000.0),
        Field("model", "model", REFERENCE_MODEL, known_models),
        Field("machine", "machine", REFERENCE_MACHINE, known_machines),
        Field("prompt_low", "prompt at least, tokens", 32, low=1, high=200_000, whole=True),
        Field("prompt_high", "prompt at most, tokens", 96, low=1, high=200_000, whole=True),
        Field("output_low", "output at least, tokens", 16, low=1, high=20_000, whole=True),
        Field("output_high", "output at most, tokens", 48, low=1, high=20_000, whole=True),
        Field("seed", "seed", 7, low=0, high=1_000_000_000, whole=True),
    )


class Lab:
    """Answers settings. It keeps the runs of the last traffic, so moving the SLO runs nothing again."""

    def __init__(self) -> None:
        self._traffic: Settings | None = None
        self._seen: Simulated | None = None
        self._slo: SLO | None = None  # of the summary in it
        self._judged: dict[float, Judged] = {}

    def answer(self, request: str) -> str:
        """JSON in, JSON out: ``{"settings": {...}}`` for a run, with ``"rate"`` for one point of the curve.

        A setting that cannot be is answered with ``{"errors": {field: line}}``.
        """
        asked = json.loads(request)
        try:
            settings = settings_from(asked["settings"])
            rate = asked.get("rate")
            found = self.run(settings) if rate is None else self.curve_point(settings, float(rate))
        except InvalidRequestError as error:
            return json.dumps({"errors": dict([_by_field(error)])})
        return json.dumps(found)

    def run(self, settings: Settings) -> dict[str, Any]:
        """All that the page shows of one run, but the curve. Times in seconds from its start."""
        seen = self._replayed(settings)
        record = seen.point.runs[0]
        summary = seen.point.summary if settings.slo == self._slo else summarise([record], settings.slo)
        estimates, values = summary.estimates(), samples(record)
        steps = occupancy(seen.lives)
        return {
            "headline": [
                {"name": c.name, "label": c.heading, "value": c.show(estimates[c.name])} for c in COLUMNS
            ],
            "notes": [f"{c.heading}: {note}" for c in COLUMNS if (note := estimates[c.name].note)],
            "completed": summary.completed,
            "failed": summary.failed,
            "conditions": seen.point.conditions.line(),
            "duration": _short(record.duration),
            "rows": _rows(seen.lives),
            "count": {
                "time": [_short(step.time) for step in steps],
                "waiting": [step.waiting for step in steps],
                "running": [step.running for step in steps],
            },
            "cache": {**_thinned(seen.cache, record.duration), "capacity": seen.capacity},
            "ttft": _quantiles(values.ttft),
            "gap": _quantiles(values.gap),
            "slo": {"ttft": settings.slo.ttft, "gap": settings.slo.gap},
            "rates": around(settings.rate),
            "point": self.curve_point(settings, settings.rate),
        }

    def curve_point(self, settings: Settings, rate: float) -> dict[str, float]:
        """The share of requests that meet the SLO at ``rate``, everything else as set."""
        self._keep_if_same(settings)
        if rate not in self._judged:
            self._judged[rate] = _judged(curve(settings, [rate])[0].runs[0])
        slo = settings.slo
        met = sum(first <= slo.ttft and gap <= slo.gap for first, gap in self._judged[rate])
        return {"rate": rate, "goodput": met / settings.requests}

    def _replayed(self, settings: Settings) -> Simulated:
        self._keep_if_same(settings)
        if self._seen is None or self._seen.point.rate != settings.rate:
            self._seen, self._slo = replay(settings), settings.slo
            self._judged[settings.rate] = _judged(self._seen.point.runs[0])
        return self._seen

    def _keep_if_same(self, settings: Settings) -> None:
        """Forget the runs kept, unless all but rate and SLO are as they were."""
        traffic = replace(settings, rate=1.0, slo=SLO())
        if traffic != self._traffic:
            self._traffic, self._seen = traffic, None
            self._judged.clear()


def settings_from(given: Mapping[str, Any]) -> Settings:
    """Settings from the form's values, the default where one is missing.

    Raises ``InvalidRequestError`` with the name of the setting at fault.
    """
    known_names = [field.name for field in _fields()]
    for name in given:
        if name not in known_names:
            raise InvalidRequestError("setting", name, f"one of {', '.join(known_names)}")
    value: dict[str, Any] = {}
    for field in _fields():
        found = value[field.name] = given.get(field.name, field.default)
        known = [name for name, _ in field.choices]
        if known and found not in known:
            raise InvalidRequestError(field.name, found, f"one of {', '.join(known)}")
        if not known:
            check: Callable[[str, Any, Any, Any], None] = check_int if field.whole else check_float
            check(field.name, found, int(field.low) if field.whole else field.low, field.high)
    for low, high in (("prompt_low", "prompt_high"), ("output_low", "output_high")):
        if value[low] > value[high]:
            raise InvalidRequestError(low, value[low], f"at most the longest, {value[high]}")
    most = MOST_TOKENS // value["output_high"]
    if value["requests"] > most:
        limit = f"at most {most} with outputs this long: a page computes {MOST_TOKENS:,} tokens a run"
        raise InvalidRequestError("requests", value["requests"], limit)
    option = BATCH_OPTIONS.get(value["engine"])
    return Settings(
        engine=value["engine"],
        options={} if option is None else {option: value["batch"]},
        machine=value["machine"],
        model=value["model"],
        rate=float(value["rate"]),
        requests=value["requests"],
        seed=value["seed"],
        prompt=Uniform(value["prompt_low"], value["prompt_high"]),
        output=Uniform(value["output_low"], value["output_high"]),
        slo=SLO(value["slo_ttft"], value["slo_gap"]),
    )


def around(rate: float) -> list[float]:
    """Rates of the curve: two to a doubling, on one fixed grid, from an eighth to eight times ``rate``."""
    middle = round(2 * math.log2(rate))
    return [float(f"{2.0 ** (half / 2):.4g}") for half in range(middle - 6, middle + 7)]


def _judged(record: RunRecord) -> Judged:
    return [(ttft(r) or 0.0, max(gaps(r), default=0.0)) for r in record.requests if meets(r, _ANY)]


def _rows(lives: Sequence[Life]) -> dict[str, list[float | None]]:
    """A row a request, in arrival order."""
    return {
        "scheduled": [_short(life.scheduled) for life in lives],
        "admitted": [_short(life.admitted) for life in lives],
        "first": [_short(life.first) for life in lives],
        "end": [_short(life.end) for life in lives],
    }


def _thinned(cache: Sequence[Filled], duration: float) -> dict[str, list[float]]:
    """The most tokens held in each of ``MOMENTS`` equal parts of the run."""
    if not cache or duration <= 0:
        return {"time": [], "tokens": []}
    most, held, reached = [0] * (MOMENTS + 1), 0, 0
    for filled in cache:
        part = int(MOMENTS * filled.time / duration)
        for passed in range(reached, part + 1):
            most[passed] = max(most[passed], held)
        reached, held = part, filled.tokens
        most[part] = max(most[part], held)
    return {"time": [i * duration / MOMENTS for i in range(MOMENTS + 1)], "tokens": list(most)}


def _quantiles(ordered: Sequence[float]) -> list[float | None]:
    """The 0 %, 0.5 %, ... 100 % points of values in rising order; empty of none."""
    return [_short(percentile(ordered, i / QUANTILES)) for i in range(QUANTILES + 1)] if ordered else []


def _short(value: float | None) -> float | None:
    return None if value is None else round(value, 6)


def _by_field(error: InvalidRequestError) -> tuple[str, str]:
    """The form's field at fault and a line to stand by it; what no field is to blame for is the model's."""
    said = str(error)
    name = "batch" if error.field in BATCH_OPTIONS.values() else error.field
    if name in {field.name for field in _fields()}:
        return name, "G" + said.removeprefix(f"{error.field}: g")
    return "prompt_high" if error.field.startswith("prompt") else "model", said


_ANY = SLO(1e300, 1e300)  # which every success meets
