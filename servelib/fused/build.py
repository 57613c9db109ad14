"""Compile ``kernels.c`` for one model on this machine, and load it. It takes about a second, each time.

Nothing is kept: a library made for this processor, in a home that another shares, would break there.
"""

from __future__ import annotations

import os
import shlex
import shutil
import subprocess
import tempfile
from collections.abc import Mapping, Sequence
from ctypes import CDLL, c_float, c_int, c_int64, c_void_p
from importlib.resources import as_file, files
from pathlib import Path

from servelib.errors import KernelError

LANES = 16
"""Numbers a vector takes, as in ``kernels.c``: heads are of so many numbers or a multiple."""

# Nobody asks for the processor's flags or errno. Sums run in vectors where the source says so; all else keeps
# its order, on which the exponential's last bits hang. Not -ffast-math: it drops that order, infinities and
# NaN, and loading such a library changes how the whole process rounds its smallest numbers.
UNSEEN = ("-fno-trapping-math", "-fno-math-errno")
ALWAYS = ("-O3", "-std=gnu11", "-shared", "-fPIC", "-fopenmp-simd", *UNSEEN, "-Wno-psabi")  # one file: no ABI
NATIVE = (("-march=native",), ("-mcpu=native",), ())  # this processor's instructions, or any one's
WISHES = tuple((*native, *threads) for threads in (("-fopenmp",), ()) for native in NATIVE)
"""The first that the compiler can do is taken: threads matter more than instructions."""

_P, _N, _T = c_void_p, c_int64, c_int  # a tensor's memory, a size, how many threads
SIGNATURES: Mapping[str, Sequence[type]] = {
    "add_rms_norm": (_P, _P, _P, _P, _N, _N, c_float, _T),
    "silu_and_mul": (_P, _P, _N, _N, _T),
    "attention": (_P, _P, _P, _P, _P, _P, _P, _P, _P, _N, _N, _N, _T),
}
LONGEST_S = 120.0


def load_kernels(**sizes: int) -> CDLL:
    """The kernels for a model of these sizes (``heads``, ``kv_heads``, ``head_size``), ready to call.

    Raises ``KernelError``: no compiler, one that cannot compile them, or no folder to load them from. The
    variable CC names another compiler, TMPDIR another folder.
    """
    compiler = _compiler()
    try:
        with tempfile.TemporaryDirectory(prefix="servelib-") as folder:
            library = Path(folder, "kernels.so")
            _compile(compiler, library, [f"-D{name.upper()}={size}" for name, size in sizes.items()])
            kernels = CDLL(str(library))  # stays loaded when its file is gone
    except OSError as error:
        raise KernelError(f"cannot load what {compiler[0]} compiles: {error}; {WAY_OUT}") from None
    for name, arguments in SIGNATURES.items():
        function = getattr(kernels, name)
        function.argtypes, function.restype = arguments, None
    kernels.has_threads.argtypes = ()
    return kernels


WAY_OUT = "set CC to another compiler, TMPDIR to another folder, or take PyTorch's kernels"


def _compiler() -> list[str]:
    """The command, and what the variable CC adds to it."""
    named = os.environ.get("CC", "").strip()
    try:
        words = shlex.split(named)
    except ValueError as error:
        raise KernelError(f"CC is {named!r}: {error}; {WAY_OUT}") from None
    for command in (words,) if words else (["cc"], ["gcc"], ["clang"]):
        if path := shutil.which(command[0]):
            return [path, *command[1:]]
    tried = f"CC is {named!r}, which is none" if named else "tried cc, gcc and clang"
    raise KernelError(f"no C compiler found ({tried}): install one, or take PyTorch's kernels")


def _compile(compiler: Sequence[str], library: Path, defines: Sequence[str]) -> None:
    said = ""
    with as_file(files("servelib.fused") / "kernels.c") as source:
        for wishes in WISHES:
            command = [*compiler, *ALWAYS, *wishes, *defines, str(source), "-o", str(library), "-lm"]
            try:
                done = subprocess.run(
                    command, capture_output=True, text=True, errors="replace", timeout=LONGEST_S
                )
            except (OSError, subprocess.TimeoutExpired) as error:
                raise KernelError(f"{compiler[0]} did not run: {error}; {WAY_OUT}") from None
            if done.returncode == 0:
                return
            said = said or done.stderr  # of the first try: the others wish for less
    lines = (
        [line for line in said.splitlines() if "error" in line] or said.splitlines() or ["it says nothing"]
    )
    raise KernelError(f"{compiler[0]} cannot compile the kernels: {lines[0].strip()}; {WAY_OUT}")
