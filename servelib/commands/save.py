"""Writing a result that took a while to get: if it cannot go where it should, it goes somewhere."""

from __future__ import annotations

import tempfile
from collections.abc import Iterable
from pathlib import Path

from servelib.commands.options import UsageError
from servelib.harness.report import write_text


def save(path: Path, text: str) -> None:
    """Write ``text`` to ``path``; failing that, to a new file that the ``UsageError`` names.

    The path was found writable before the run; since then a disk may have filled, or a folder gone.
    """
    try:
        write_text(path, text)
    except OSError as error:
        reason = f"cannot write {str(path)!r}: {error.strerror or error}"
        try:
            with tempfile.NamedTemporaryFile(
                "w", encoding="utf-8", delete=False, prefix="servelib-", suffix=path.suffix
            ) as file:
                file.write(text)
        except OSError as again:
            raise UsageError(f"{reason}; nor a temporary file: {again.strerror or again}") from None
        raise UsageError(f"{reason}; the result is in {file.name}") from None


def save_all(texts: Iterable[tuple[Path, str]]) -> None:
    """``save`` each, one at a time; then raise one ``UsageError`` for all that went elsewhere."""
    complaints = []
    for path, text in texts:
        try:
            save(path, text)
        except UsageError as error:
            complaints.append(str(error))
    if complaints:
        raise UsageError("; ".join(complaints))
