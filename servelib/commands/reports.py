"""Where results go besides the table: the files that ``bench`` and ``sweep`` write."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from importlib.util import find_spec

from servelib.commands.options import UsageError, output_file
from servelib.harness.report import write_text
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


def write_reports(options: argparse.Namespace, points: Sequence[Point]) -> None:
    """Write what was asked for."""
    # Imported here, so that a run without them needs neither package.
    if options.html is not None:
        from servelib.harness.html import html_report

        write_text(options.html, html_report(points))
    if options.hdr is not None:
        from servelib.harness.hdr import hdr_log

        write_text(options.hdr, hdr_log(points))
