"""Compiling the kernels: what is found missing is said in one line, and the process rounds as before."""

from __future__ import annotations

import platform
import stat
from pathlib import Path

import pytest
import torch

from servelib.errors import KernelError
from servelib.fused import build
from servelib.fused.build import LANES, load_kernels

SIZES = {"heads": 4, "kv_heads": 2, "head_size": 16}


def script(folder: Path, text: str) -> str:
    path = folder / "compiler"
    path.write_text(f"#!/bin/sh\n{text}\n")
    path.chmod(path.stat().st_mode | stat.S_IXUSR)
    return str(path)


def test_lanes_are_those_of_the_source():
    assert f"#define LANES {LANES} " in (Path(build.__file__).parent / "kernels.c").read_text()


def test_nothing_is_left_behind(monkeypatch: pytest.MonkeyPatch, tmp_path: Path):
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    load_kernels(**SIZES)
    assert list(tmp_path.iterdir()) == []


def test_loading_does_not_change_how_small_numbers_round():
    tiny = torch.tensor(1e-40)
    assert tiny * 1 != 0
    load_kernels(**SIZES)
    assert tiny * 1 != 0


@pytest.mark.parametrize("refused", ["-fopenmp", "-march=native", "-fopenmp -march=native"])
def test_a_compiler_that_can_do_less_gets_by(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, refused: str):
    cases = "\n".join(f'case " $* " in *" {flag} "*) exit 1;; esac' for flag in refused.split())
    monkeypatch.setenv("CC", script(tmp_path, cases + '\nexec cc "$@"'))
    both, y = torch.tensor([[1.0, 2.0]]), torch.zeros(1, 1)
    load_kernels(**SIZES).silu_and_mul(both.data_ptr(), y.data_ptr(), 1, 1, 2)
    assert y.item() == pytest.approx(2 / (1 + 2.718281828**-1))


@pytest.mark.parametrize("options", ["-O3", "-O1", "-O0", "-O3 -ffp-contract=off"])
def test_the_exponential_is_exact_to_the_last_bit_or_two(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, options: str
):
    """However the compiler is told to go about it: it may not put the two parts of ln 2 together."""
    monkeypatch.setenv("CC", script(tmp_path, f'exec cc "$@" {options}'))
    gates = torch.linspace(-86.5, 86.5, 20001)
    both, y = torch.cat((gates, torch.ones_like(gates))), torch.zeros_like(gates)
    load_kernels(**SIZES).silu_and_mul(both.data_ptr(), y.data_ptr(), 1, len(gates), 1)
    wanted = torch.nn.functional.silu(gates.double())
    assert torch.allclose(y.double(), wanted, rtol=2e-7, atol=0)


@pytest.mark.parametrize("without", ["", "-mno-avx512f"], ids=["this processor", "one of shorter vectors"])
def test_cc_may_carry_options(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, without: str):
    if platform.machine() in ("x86_64", "AMD64"):
        monkeypatch.setenv("CC", script(tmp_path, f'exec cc -Wall -Wextra -Werror "$@" {without}'))
    else:
        monkeypatch.setenv("CC", "cc -Wall -Wextra -Werror")
    load_kernels(**SIZES)


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        (
            'echo "kernels.c:1: error: no such thing" >&2; exit 1',
            "cannot compile the kernels: kernels.c:1: error",
        ),
        ("exit 1", "it says nothing"),
        ("printf 'error: \\351t\\351' >&2; exit 1", "cannot compile the kernels: error: .t.;"),  # not UTF-8
        ("exit 0", "cannot load what"),
        ("sleep 60", "did not run: .* timed out"),
    ],
)
def test_a_compiler_that_fails(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, text: str, complaint: str):
    monkeypatch.setattr(build, "LONGEST_S", 0.5)
    monkeypatch.setenv("CC", script(tmp_path, text))
    with pytest.raises(KernelError, match=complaint) as error:
        load_kernels(**SIZES)
    assert "take PyTorch's kernels" in str(error.value)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize("name", ["", "no-such-compiler"])
def test_no_compiler(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, name: str):
    monkeypatch.setenv("CC", name)
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(KernelError, match=r"no C compiler found \((CC is|tried cc)"):
        load_kernels(**SIZES)


@pytest.mark.parametrize("name", ['cc "', "cc '", "cc \\"])
def test_a_command_whose_quotes_do_not_end(monkeypatch: pytest.MonkeyPatch, name: str):
    monkeypatch.setenv("CC", name)
    with pytest.raises(KernelError, match=r"^CC is .*: No (closing quotation|escaped character); set CC"):
        load_kernels(**SIZES)


def test_a_folder_with_any_name_will_do(monkeypatch: pytest.MonkeyPatch, tmp_path: Path):
    folder = tmp_path / "with spaces, ümläute and -o @x"
    folder.mkdir()
    monkeypatch.setattr("tempfile.tempdir", str(folder))
    load_kernels(**SIZES)


def test_no_folder_to_compile_in(monkeypatch: pytest.MonkeyPatch, tmp_path: Path):
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path / "gone"))
    with pytest.raises(KernelError, match=r"cannot load what .*gone.*TMPDIR to another folder") as error:
        load_kernels(**SIZES)
    assert "\n" not in str(error.value)
