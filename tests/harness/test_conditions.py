from __future__ import annotations

import sys
from dataclasses import replace
from datetime import UTC, datetime
from types import SimpleNamespace

from servelib.clock import VirtualClock
from servelib.engine.naive import NaiveEngine
from servelib.harness import conditions as module
from servelib.harness.conditions import conditions
from servelib.harness.metrics import SLO
from servelib.harness.trace import REFERENCE_WORKLOAD
from servelib.model.config import REFERENCE
from servelib.sim.cost import StepCost
from servelib.sim.model import CostedModel

NOON = datetime(2026, 11, 29, 14, 0, 0, tzinfo=UTC)


def about(*, runs: int = 1, rate: float = 4.0, virtual: bool = False):
    clock = VirtualClock()
    cost = StepCost(0.01, provenance="step cost of a test")
    engine = NaiveEngine(CostedModel(REFERENCE, cost, clock), clock=clock)
    return conditions(engine, REFERENCE_WORKLOAD.trace(rate), runs=runs, slo=SLO(), virtual=virtual, now=NOON)


def test_the_line_of_a_live_run(monkeypatch):
    monkeypatch.setattr(module, "machine", lambda: "2x x86_64 CPU")
    monkeypatch.setattr(module, "torch_in_use", lambda: "2.13.0+cpu")
    assert about(runs=3).line() == (
        "Conditions: TinyGPT (reference, random weights) (5,838,080 params), naive engine, 2x x86_64 CPU, "
        "torch 2.13.0+cpu, poisson, prompt 32-96, output 16-48, seeds 7-9, arrival rate 4.0/s, "
        "24 requests x 3 runs, measured 2026-11-29T14:00:00+00:00"
    )
    assert "seed 7, arrival rate 0.25/s, 24 requests x 1 run, measured" in about(rate=0.25).line()


def test_the_line_in_virtual_time_names_the_cost_and_no_machine():
    found = about(runs=3, virtual=True)
    assert found.line() == (
        "Conditions: TinyGPT (reference, random weights) (5,838,080 params), naive engine, "
        "virtual time (step cost of a test), poisson, prompt 32-96, output 16-48, seeds 7-9, "
        "arrival rate 4.0/s, 24 requests x 3 runs"
    )
    assert (found.machine, found.torch, found.measured) == (None, None, None)


def test_the_line_of_a_sweep():
    assert ", arrival rates 1, 4, 8/s, " in about().over((1.0, 4.0, 8.0)).line()


def test_the_machine_is_this_one():
    count, rest = module.machine().split("x ", 1)
    assert int(count) >= 1
    assert rest.endswith(" CPU")


def test_without_torch_the_line_says_so():
    assert ", no torch, " in replace(about(), torch=None).line()


def test_the_dictionary_holds_every_seed_and_the_line():
    found = about(runs=3).to_dict()
    assert found["seeds"] == [7, 8, 9]
    assert found["slo"] == {"ttft": 1.0, "gap": 0.05}
    assert found["line"] == about(runs=3).line()


def test_torch_is_named_with_its_threads_once_somebody_has_loaded_it(monkeypatch):
    monkeypatch.setattr(module, "version", lambda name: "2.13.0+cpu")
    monkeypatch.setitem(sys.modules, "torch", SimpleNamespace(get_num_threads=lambda: 1))
    assert module.torch_in_use() == "2.13.0+cpu, 1 thread"
    monkeypatch.setitem(sys.modules, "torch", SimpleNamespace(get_num_threads=lambda: 8))
    assert module.torch_in_use() == "2.13.0+cpu, 8 threads"
    monkeypatch.delitem(sys.modules, "torch")
    assert module.torch_in_use() == "2.13.0+cpu"
