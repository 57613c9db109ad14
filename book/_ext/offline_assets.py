"""Make the site whole without a network: plotly.js from the installed wheel, MathJax from book/vendor."""

from __future__ import annotations

import shutil
from pathlib import Path

import plotly


def _copy(app, exception) -> None:
    if exception is not None or app.builder.format != "html":
        return
    source = Path(plotly.__file__).parent / "package_data" / "plotly.min.js"
    target = Path(app.outdir) / "_static" / "vendor" / "plotly.min.js"
    target.parent.mkdir(parents=True, exist_ok=True)
    shutil.copyfile(source, target)


def setup(app) -> dict[str, bool]:
    """Register with Sphinx."""
    app.connect("build-finished", _copy)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
