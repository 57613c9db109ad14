"""Where results go: the table, and the files that ``bench`` and ``sweep`` write."""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from servelib.commands.options import UsageError, output_file
from servelib.commands.save import save_all
from servelib.harness.report import text_table, to_json
from servelib.harness.sweep import Point

NEEDS = {"html": "plotly", "hdr": "hdrh"}


def add_reports(parser: argparse.ArgumentParser) -> None:
    """The options for files other than JSON."""
    add = parser.add_argument
    add("--html", type=output_file, metavar="FILE", help="write a page with figures, whole in one file")
    add("--hdr", type=output_file, metavar="FILE", help="write an HdrHistogram log of the latencies")


def check_reports(options: argparse.Namespace) -> None:
    """Raise ``UsageError`` now if a report could not be made after the run."""
    for name, module in NEEDS.items():
        if getattr(options, name) is not None and find_spec(module) is None:
            raise UsageError(f"--{name} needs `pip install 'servelib[reports]'`")


def write_results(options: argparse.Namespace, points: Sequence[Point], content: dict[str, Any]) -> None:
    """Write every file that was asked for, ``content`` as JSON; then print the table.

    Raises ``UsageError`` that says where the files are which could not go where they should.
    """
    try:
        save_all(_files(options, points, content))  # first, so that a closed stdout loses nothing
    finally:  # and a full disk not the table
        print(text_table(points))


def _files(
    options: argparse.Namespace, points: Sequence[Point], content: dict[str, Any]
) -> Iterator[tuple[Path, str]]:
    """Where each file goes and what is in it, each made when its turn comes."""
    if options.json is not None:
        yield options.json, to_json(content)
    # Imported here, so that a run without them needs neither package.
    if options.html is not None:
        from servelib.harness.html import html_report

        yield options.html, html_report(points)
    if options.hdr is not None:
        from servelib.harness.hdr import hdr_log

        yield options.hdr, hdr_log(points)
