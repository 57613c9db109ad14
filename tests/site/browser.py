"""A Chromium for the tests of the pages: found, or fetched when run as a script."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

from playwright.sync_api import sync_playwright

NAMES = ("chromium", "chromium-browser", "google-chrome")


def find() -> str | None:
    """Return the path of a Chromium: SERVELIB_CHROMIUM, one on the path, or Playwright's own."""
    named = os.environ.get("SERVELIB_CHROMIUM")
    if named:
        if not shutil.which(named):
            raise FileNotFoundError(f"SERVELIB_CHROMIUM is {named!r}, which cannot be executed")
        return named
    for name in NAMES:
        if path := shutil.which(name):
            return path
    with sync_playwright() as playwright:
        own = playwright.chromium.executable_path
    return own if Path(own).exists() else None


def ways_to_fetch() -> list[list[list[str]]]:
    """Return the ways to fetch one, the likelier first; each is a list of commands."""
    playwright = [[sys.executable, "-m", "playwright", "install", "chromium"]]
    debian = [["apt-get", "update", "-q"], ["apt-get", "install", "-yq", "chromium", "fonts-dejavu-core"]]
    is_debian_root = shutil.which("apt-get") and os.geteuid() == 0
    return [debian, playwright] if is_debian_root else [playwright]


def main() -> None:
    """Fetch a browser if there is none, and say in one line what there is."""
    found = find()
    for commands in ways_to_fetch() if found is None else []:
        try:
            for command in commands:
                print("No Chromium yet, trying:", *command, flush=True)
                subprocess.run(command, check=True, timeout=600)
        except (OSError, subprocess.SubprocessError) as problem:
            print(f"That failed: {problem}")
        if found := find():
            break
    print(f"Browser for the pages: {found}" if found else "No Chromium found, and none could be fetched.")


if __name__ == "__main__":
    main()
