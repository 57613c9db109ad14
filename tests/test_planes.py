"""The control plane needs no torch, and its core nothing but the standard library."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

# Every module not listed here is control plane. A new tensor module is added by hand, on purpose.
DATA_PLANE = {
    "servelib.exercises.attending",
    "servelib.exercises.ch05",
    "servelib.fused.cache",
    "servelib.fused.kernels",
    "servelib.fused.model",
    "servelib.kv.contiguous",
    "servelib.kv.padded",
    "servelib.kv.slots",
    "servelib.model.attention",
    "servelib.model.linear",
    "servelib.model.pretrained",
    "servelib.model.rope_scaling",
    "servelib.model.rotary",
    "servelib.model.sampling",
    "servelib.model.tinygpt",
    "servelib.model.weights",
    "servelib.sim.ceilings",
}
CORE = [
    "servelib.clock",
    "servelib.engine.batch",
    "servelib.engine.continuous",
    "servelib.engine.naive",
    "servelib.engine.protocol",
    "servelib.engine.registry",
    "servelib.engine.scheduler",
    "servelib.engine.static",
    "servelib.errors",
    "servelib.harness.arrivals",
    "servelib.harness.bootstrap",
    "servelib.harness.capacity",
    "servelib.harness.closed",
    "servelib.harness.compare",
    "servelib.harness.drive",
    "servelib.harness.facts",
    "servelib.harness.laws",
    "servelib.harness.lengths",
    "servelib.harness.metrics",
    "servelib.harness.null",
    "servelib.harness.openai_stream",
    "servelib.harness.records",
    "servelib.harness.selfcheck",
    "servelib.harness.sse",
    "servelib.harness.target",
    "servelib.harness.power",
    "servelib.harness.results",
    "servelib.harness.stats",
    "servelib.harness.sweep",
    "servelib.harness.system",
    "servelib.harness.trace",
    "servelib.harness.trace_files",
    "servelib.harness.window",
    "servelib.kv.pool",
    "servelib.model.config",
    "servelib.model.llama_config",
    "servelib.model.scripted",
    "servelib.model.uniform",
    "servelib.request",
    "servelib.sim.catalogue",
    "servelib.sim.cost",
    "servelib.sim.count",
    "servelib.sim.lab",
    "servelib.sim.machines",
    "servelib.sim.model",
    "servelib.sim.models",
    "servelib.sim.occupancy",
    "servelib.sim.queueing",
    "servelib.sim.roofline",
    "servelib.sim.shape",
    "servelib.sim.simulate",
    "servelib.spans",
]

PROBE = """
import importlib, importlib.abc, json, sys

allowed_only, names = json.loads(sys.argv[1])

class Block(importlib.abc.MetaPathFinder):
    def find_spec(self, fullname, path=None, target=None):
        top = fullname.partition(".")[0]
        known = top == "servelib" or top in sys.stdlib_module_names
        if top == "torch" or (allowed_only and not known):
            raise ImportError(f"{top} is out of bounds here")
        return None

# An editable install puts its own finder in; ours must come before all others.
sys.meta_path.insert(0, Block())
failed = {}
for name in names:
    try:
        importlib.import_module(name)
    except ImportError as error:
        failed[name] = str(error)
print(json.dumps({"failed": failed, "loaded": sorted(m for m in sys.modules if m.startswith("servelib"))}))
"""

NAMES = """
import json, pkgutil, servelib
print(json.dumps(sorted(m.name for m in pkgutil.walk_packages(servelib.__path__, "servelib."))))
"""


def run(code: str, *args: str):
    done = subprocess.run([sys.executable, "-c", code, *args], capture_output=True, text=True, timeout=100)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def probe(names: list[str], *, standard_library_only: bool = False):
    return run(PROBE, json.dumps([standard_library_only, names]))


@pytest.fixture(scope="module")
def modules() -> list[str]:
    return run(NAMES)


def test_the_walk_finds_both_planes(modules: list[str]):
    assert set(modules) >= DATA_PLANE, "a module of the list is gone: take it out"
    assert {"servelib.request", "servelib.engine.naive", "servelib.harness.records"} <= set(modules)


def test_the_control_plane_imports_where_torch_raises(modules: list[str]):
    control = [name for name in modules if name not in DATA_PLANE]
    assert probe(control)["failed"] == {}


def test_the_core_needs_only_the_standard_library(modules: list[str]):
    core = [name for name in CORE if name in modules]
    assert probe(core, standard_library_only=True)["failed"] == {}


def test_the_block_blocks():
    failed = probe(sorted(DATA_PLANE))["failed"]
    assert failed == dict.fromkeys(DATA_PLANE, "torch is out of bounds here")


def test_importing_the_package_imports_nothing_of_it():
    assert probe(["servelib"])["loaded"] == ["servelib"]
