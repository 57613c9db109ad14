"""The pins, the ranges and the imports say the same thing."""

from __future__ import annotations

import ast
import re
import sys
import tomllib
from collections.abc import Iterator
from importlib.metadata import packages_distributions
from pathlib import Path

import nbformat
import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ROOT = Path(__file__).parents[1]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
DECLARED = [
    Requirement(line)
    for lines in (PROJECT["dependencies"], *PROJECT["optional-dependencies"].values())
    for line in lines
]


def pins() -> dict[str, str]:
    found: dict[str, str] = {}
    for line in (ROOT / "requirements.txt").read_text().splitlines():
        if text := line.split("#")[0].strip():
            match = re.fullmatch(r"([A-Za-z0-9._-]+)==([A-Za-z0-9.]+)", text)
            assert match, f"not an exact pin: {line}"
            name = canonicalize_name(match[1])
            assert name not in found, f"pinned twice: {name}"
            found[name] = match[2]
    return found


@pytest.mark.parametrize("requirement", DECLARED, ids=str)
def test_every_direct_dependency_is_pinned_inside_its_range(requirement: Requirement) -> None:
    version = pins().get(canonicalize_name(requirement.name))
    assert version is not None, f"{requirement.name} is in pyproject.toml and not in requirements.txt"
    assert requirement.specifier.contains(version, prereleases=True)


def code() -> Iterator[tuple[Path, str]]:
    for folder in ("servelib", "tests", "book/_ext", "benchmarks"):
        for path in (ROOT / folder).rglob("*.py"):
            yield path, path.read_text()
    for path in (ROOT / "notebooks").glob("*.ipynb"):
        cells = nbformat.read(path, as_version=4).cells
        lines = "\n".join(cell.source for cell in cells if cell.cell_type == "code").splitlines()
        yield path, "\n".join(line for line in lines if not line.lstrip().startswith(("%", "!")))


def test_every_import_is_declared_or_pinned() -> None:
    # What a file imports must not be there by luck, as the dependency of a dependency.
    known = {canonicalize_name(requirement.name) for requirement in DECLARED} | set(pins())
    local = {"servelib"} | {
        path.stem for name in ("tests", "benchmarks") for path in (ROOT / name).rglob("*.py")
    }
    providers = packages_distributions()
    peers = ROOT / "benchmarks" / "peers"  # scripts that run in environments of their own
    theirs = "\n".join(path.read_text() for path in [*peers.glob("*.txt"), peers.parent / "environments.py"])
    undeclared = set()
    for path, text in code():
        for node in ast.walk(ast.parse(text)):
            names = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
            if isinstance(node, ast.ImportFrom) and node.level == 0 and node.module:
                names = [node.module]
            for name in (name.split(".")[0] for name in names):
                if name in sys.stdlib_module_names or name in local:
                    continue
                if path.parent == peers and canonicalize_name(name) in theirs:
                    continue
                distributions = {canonicalize_name(found) for found in providers.get(name, [name])}
                if not distributions & known:
                    undeclared.add(f"{path.relative_to(ROOT)}: {name}")
    assert not undeclared
