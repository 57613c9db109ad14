"""Leave the state of live widgets out of the pages: without a kernel it is megabytes of dead weight."""

from __future__ import annotations

from myst_nb.sphinx_ import NbMetadataCollector


def _drop(app, doctree) -> None:
    NbMetadataCollector.get_js_files(app.env, app.env.docname).pop("ipywidgets_state", None)


def setup(app) -> dict[str, bool]:
    """Register with Sphinx."""
    app.connect("doctree-read", _drop)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
