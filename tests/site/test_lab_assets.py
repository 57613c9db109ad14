"""Pyodide at build time: kept if whole, fetched if it can be, else left to the page."""

from __future__ import annotations

import importlib.util
import subprocess
from pathlib import Path
from types import ModuleType

import pytest
from built import ROOT


@pytest.fixture
def assets() -> ModuleType:
    spec = importlib.util.spec_from_file_location("lab_assets", ROOT / "book" / "_ext" / "lab_assets.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_without_npm_the_build_goes_on(assets: ModuleType, tmp_path: Path, monkeypatch) -> None:
    monkeypatch.setattr(assets.shutil, "which", lambda name: None)
    assert assets.pyodide(tmp_path) is None


def test_where_npm_reaches_nothing_the_build_goes_on(assets: ModuleType, tmp_path: Path, monkeypatch) -> None:
    def fails(command: list[str], **how: object) -> None:
        raise subprocess.CalledProcessError(1, command)

    monkeypatch.setattr(assets.shutil, "which", lambda name: "/usr/bin/npm")
    monkeypatch.setattr(assets.subprocess, "run", fails)
    assert assets.pyodide(tmp_path) is None


def test_a_damaged_copy_is_not_used(assets: ModuleType, tmp_path: Path, monkeypatch) -> None:
    content = {name: name.encode() for name in assets.HASHES}
    monkeypatch.setattr(assets, "HASHES", {name: assets.sha384(held) for name, held in content.items()})
    monkeypatch.setattr(assets.shutil, "which", lambda name: None)
    for name, held in content.items():
        (tmp_path / name).write_bytes(held)
    assert assets.pyodide(tmp_path) == tmp_path
    (tmp_path / "pyodide.mjs").write_bytes(b"something else")
    assert assets.pyodide(tmp_path) is None


def test_the_archive_is_the_same_every_time_and_has_no_tensors(assets: ModuleType, tmp_path: Path) -> None:
    for name in ("a.zip", "b.zip"):
        assets.write_archive(ROOT, tmp_path / name)
    assert (tmp_path / "a.zip").read_bytes() == (tmp_path / "b.zip").read_bytes()
    names = {path.as_posix() for path in assets.package_files(ROOT)}
    assert {"servelib/sim/simulate.py", "servelib/sim/machines.json"} <= names
    assert not {"servelib/model/tinygpt.py", "servelib/kv/contiguous.py"} & names
