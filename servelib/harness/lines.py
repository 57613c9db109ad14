"""Reading text files line by line, so that an error names the file and the line."""

from __future__ import annotations

import csv
import json
import math
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from servelib.errors import InvalidRequestError


def is_file(text: str) -> bool:
    """Whether ``text`` names a file; no name that the system cannot take does."""
    try:
        return Path(text).is_file()
    except (OSError, ValueError):
        return False


def numbered_lines(path: Path) -> Iterator[tuple[str, str]]:
    """("file:number", line) for every line that is not blank. Raises ``InvalidRequestError``.

    Only line feeds end a line (with or without a carriage return), as in JSON lines.
    """
    try:
        with path.open(encoding="utf-8-sig", newline="\n") as file:
            for number, line in enumerate(file, start=1):
                if line.strip():
                    yield f"{path}:{number}", line.strip()
    except (OSError, UnicodeDecodeError) as error:
        reason = getattr(error, "strerror", None) or str(error)
        raise InvalidRequestError("file", str(path), f"a readable text file ({reason})") from error


def json_objects(path: Path, wanted: Sequence[str]) -> Iterator[tuple[str, dict[str, Any]]]:
    """("file:number", object) for every line of a JSON lines file; ``wanted`` keys are all there."""
    expected = "a JSON object" + (f" with {', '.join(wanted)}" if wanted else "")
    for where, line in numbered_lines(path):
        try:
            found = json.loads(line)
        except (ValueError, RecursionError):
            found = None
        if not isinstance(found, dict) or any(key not in found for key in wanted):
            raise InvalidRequestError(where, line, expected)
        yield where, found


def csv_rows(path: Path, wanted: Sequence[str]) -> Iterator[tuple[str, dict[str, str]]]:
    """("file:number", row) for every line of a CSV file whose first line names the columns."""
    columns: list[str] | None = None
    for where, line in numbered_lines(path):
        cells = [cell.strip() for cell in next(csv.reader([line]))]
        if columns is None:
            columns = cells
            if any(name not in columns for name in wanted):
                raise InvalidRequestError(where, line, f"a header with the columns {', '.join(wanted)}")
        elif len(cells) != len(columns):
            raise InvalidRequestError(where, line, f"{len(columns)} values: {', '.join(columns)}")
        else:
            yield where, dict(zip(columns, cells, strict=True))


def whole(where: str, name: str, value: object, low: int) -> int:
    """``value``, text or number, as an integer >= ``low``. Raises ``InvalidRequestError``."""
    text = value if isinstance(value, str) else repr(value)
    plain = text.isascii() and text.isdecimal() and len(text) <= 18
    if not plain or int(text) < low:
        raise InvalidRequestError(f"{where}: {name}", value, f"an integer >= {low}")
    return int(text)


def number(where: str, name: str, value: object) -> float:
    """``value``, text or number, as a finite number >= 0. Raises ``InvalidRequestError``."""
    try:
        found = math.nan if isinstance(value, bool) else float(value)  # type: ignore[arg-type]
    except (TypeError, ValueError, OverflowError):
        found = math.nan
    if not (math.isfinite(found) and found >= 0):
        raise InvalidRequestError(f"{where}: {name}", value, "a finite number >= 0")
    return found
