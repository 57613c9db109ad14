"""Being told to stop, by Ctrl-C or by a process manager, ends a run in order and keeps its records."""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager


@contextmanager
def stop_in_order() -> Iterator[Callable[[], bool]]:
    """Take the first SIGINT or SIGTERM inside as a wish: what is yielded says whether it came.

    So it breaks off neither the summary nor the writing of a file. The second raises
    ``KeyboardInterrupt`` where it falls.
    """
    asked = threading.Event()
    if threading.current_thread() is not threading.main_thread():  # only there can handlers be set
        yield asked.is_set
        return

    def note(*_: object) -> None:
        if asked.is_set():
            raise KeyboardInterrupt
        asked.set()

    before = {number: signal.signal(number, note) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield asked.is_set
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
