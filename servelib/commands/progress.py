"""The progress bar, on stderr, so that results on stdout stay clean."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any

from tqdm import tqdm

from servelib.harness.drive import Progress


@contextmanager
def progress_bar(total: int) -> Iterator[Progress]:
    """Show how many of ``total`` requests have ended; yields what a driver calls.

    A bar that can no longer be shown, because nobody reads stderr any more, is given up, not the run.
    """
    bar: tqdm[Any] | None = None
    with suppress(OSError):
        bar = tqdm(total=total, unit="req", file=sys.stderr, dynamic_ncols=True)

    def move(done: int, _: int) -> None:
        nonlocal bar
        if bar is not None:
            try:
                bar.update(done - bar.n)
            except OSError:
                bar.disable, bar = True, None

    try:
        yield move
    finally:
        if bar is not None:
            with suppress(OSError):
                bar.close()
