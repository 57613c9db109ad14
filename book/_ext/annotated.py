"""Print our own note, and what the entry was checked against, under each reference of the bibliography."""

from __future__ import annotations

from docutils import nodes
from pybtex.richtext import Text


def _plain(latex: str) -> str:
    return Text.from_latex(latex).render_as("text")


def _annotate(app, doctree, docname) -> None:
    domain = app.env.get_domain("cite")
    entries = {citation.citation_id: citation.entry for citation in domain.citations}
    for node in doctree.findall(nodes.citation):
        entry = entries.get(node["ids"][0]) if node["ids"] else None
        if entry is None:
            continue
        for field, lead in (("annote", ""), ("checked", "Checked: ")):
            text = entry.fields.get(field)
            if text:
                node += nodes.paragraph("", lead + _plain(text), classes=[f"sl-{field}"])


def setup(app) -> dict[str, bool]:
    """Register with Sphinx."""
    app.connect("doctree-resolved", _annotate)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
