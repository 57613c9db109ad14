"""Where the tables of README.md come from: each script writes its own, between its two marks."""

from __future__ import annotations

from pathlib import Path


def put_table(begin: str, end: str, table: str) -> None:
    """Replace what stands between the marks ``begin`` and ``end`` of README.md."""
    readme = Path(__file__).with_name("README.md")
    before, _, rest = readme.read_text().partition(begin)
    readme.write_text(f"{before}{begin}\n{table}\n{end}{rest.partition(end)[2]}")
