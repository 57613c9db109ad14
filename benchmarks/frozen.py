"""Processes that stand still while another is measured: one runs, the others are stopped (SIGSTOP).

An idle server may poll and an idle thread pool may spin; a stopped process does neither, and what it has
loaded stays loaded.
"""

from __future__ import annotations

import os
import signal
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO, Any

from environments import NoPeerError


class Frozen:
    """A command in a session of its own, so that a signal reaches whatever it started, too."""

    def __init__(self, name: str, command: list[str], log: Path, env: dict[str, str], **pipes: Any) -> None:
        self.name, self.log = name, log
        with log.open("w") as errors:
            self.process: subprocess.Popen[str] = subprocess.Popen(
                command, stderr=errors, text=True, start_new_session=True, env=os.environ | env, **pipes
            )

    @contextmanager
    def running(self) -> Iterator[None]:
        """Awake for the length of a ``with`` block."""
        self._signal(signal.SIGCONT)
        try:
            yield
        finally:
            self._signal(signal.SIGSTOP)

    def pipe(self, which: str) -> IO[str]:
        """Its standard input or output."""
        found: IO[str] | None = getattr(self.process, which)
        assert found is not None
        return found

    def fail(self, why: str) -> NoPeerError:
        """The error to raise: with the last line that the process left."""
        said = [line for line in self.log.read_text(errors="replace").splitlines() if line.strip()]
        return NoPeerError(f"{self.name} {why}: {said[-1].strip():.300}" if said else f"{self.name} {why}")

    def end(self) -> None:
        """Stop it and all that it started."""
        self._signal(signal.SIGTERM)
        self._signal(signal.SIGCONT)
        with suppress(subprocess.TimeoutExpired):
            self.process.wait(20)
        self._signal(signal.SIGKILL)
        self.process.wait()

    def _signal(self, number: signal.Signals) -> None:
        with suppress(ProcessLookupError):
            os.killpg(self.process.pid, number)
