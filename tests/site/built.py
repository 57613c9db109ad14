"""The built site: where it is, which pages it has, and what a visit to one of them saw."""

from __future__ import annotations

import os
from dataclasses import dataclass, field
from pathlib import Path

from playwright.sync_api import Page

ROOT = Path(__file__).parents[2]
SITE = Path(os.environ.get("SERVELIB_SITE", ROOT / "_build" / "html"))


def page_names() -> list[str]:
    """Every page of the built site that has content, by its path in it."""
    if not (SITE / "book").is_dir():
        return []
    made = {"genindex.html", "search.html", "index.html"}  # written by the theme; index only redirects
    names = [path.relative_to(SITE).as_posix() for path in SITE.rglob("*.html")]
    return sorted(name for name in names if name not in made and not name.startswith(("_static", "_sources")))


@dataclass
class Watched:
    """A page, and everything that went wrong on it."""

    page: Page
    problems: list[str] = field(default_factory=list)
    requested: list[str] = field(default_factory=list)
