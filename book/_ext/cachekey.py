"""Execute again when the package changes: the notebook cache alone does not see imported modules."""

from __future__ import annotations

import hashlib
from pathlib import Path

_DATA = {".py", ".json", ".jinja", ".txt"}


def key(root: Path) -> str:
    """Return a name for the state of everything that a notebook's output depends on."""
    digest = hashlib.sha256()
    files = [path for path in (root / "servelib").rglob("*") if path.suffix in _DATA]
    for path in [*sorted(files), root / "requirements.txt"]:
        digest.update(path.relative_to(root).as_posix().encode() + b"\0" + path.read_bytes() + b"\0")
    return digest.hexdigest()[:12]


def _set_cache_path(app, config) -> None:
    root = Path(app.srcdir)
    config.nb_execution_cache_path = str(root / "_build" / ".jupyter_cache" / key(root))


def setup(app) -> dict[str, bool]:
    """Register with Sphinx."""
    app.connect("config-inited", _set_cache_path)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
