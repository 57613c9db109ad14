"""Make the site whole without a network: plotly.js from the installed wheel, and a front door."""

from __future__ import annotations

import shutil
from pathlib import Path

import plotly

# The first page lives under book/; a bare redirect without an icon makes browsers ask for favicon.ico.
_FRONT_DOOR = """<!doctype html>
<html lang="en">
<meta charset="utf-8">
<meta http-equiv="refresh" content="0; url=book/index.html">
<title>Serving Tokens</title>
<link rel="icon" href="_static/favicon.svg">
<h1>Serving Tokens</h1>
<p><a href="book/index.html">To the book</a></p>
</html>
"""


def _copy(app, exception) -> None:
    if exception is not None or app.builder.format != "html":
        return
    source = Path(plotly.__file__).parent / "package_data" / "plotly.min.js"
    target = Path(app.outdir) / "_static" / "vendor" / "plotly.min.js"
    target.parent.mkdir(parents=True, exist_ok=True)
    shutil.copyfile(source, target)
    (Path(app.outdir) / "index.html").write_text(_FRONT_DOOR)


def setup(app) -> dict[str, bool]:
    """Register with Sphinx."""
    app.connect("build-finished", _copy)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
