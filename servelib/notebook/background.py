"""Work in a thread that can be stopped, so that a notebook stays alive while it measures."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

Work = Callable[[Callable[[], bool]], Any]
"""Does the work, asking the function it is given, often, whether to stop; returns the result."""


class BackgroundRun(threading.Thread):
    """Runs ``work`` once. ``on_end`` gets (result, None) or (None, the exception), in this thread.

    A daemon: it never keeps a kernel from ending.
    """

    def __init__(self, work: Work, on_end: Callable[[Any, Exception | None], None]) -> None:
        super().__init__(name="servelib background run", daemon=True)
        self._work = work
        self._on_end = on_end
        self._asked = threading.Event()

    def run(self) -> None:
        """The thread's body."""
        try:
            result = self._work(self._asked.is_set)
        except Exception as error:  # shown by whoever started the run, not lost in a thread
            self._on_end(None, error)
        else:
            self._on_end(result, None)

    def stop(self, wait: float = 0.0) -> bool:
        """Ask it to stop, wait up to ``wait`` seconds, and say whether it has ended."""
        self._asked.set()
        if wait > 0 and self.is_alive() and self is not threading.current_thread():
            self.join(wait)
        return not self.is_alive()


def stop_all(wait: float = 2.0) -> None:
    """Stop every background run of this process: two measurements at a time would spoil each other.

    This is how a cell that is run again gets rid of the run that its last panel had started.
    """
    for thread in threading.enumerate():
        if isinstance(thread, BackgroundRun):
            thread.stop(wait)
