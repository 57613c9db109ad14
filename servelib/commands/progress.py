"""The progress bar, on stderr, so that results on stdout stay clean."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager

from tqdm import tqdm

from servelib.harness.drive import Progress


@contextmanager
def progress_bar(total: int) -> Iterator[Progress]:
    """Show how many of ``total`` requests have ended; yields what a driver calls."""
    with tqdm(total=total, unit="req", file=sys.stderr, dynamic_ncols=True) as bar:

        def move(done: int, _: int) -> None:
            bar.update(done - bar.n)

        yield move
