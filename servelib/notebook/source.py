"""Code and prose that cannot go stale: source taken from the package, numbers taken from the run."""

from __future__ import annotations

import inspect
import textwrap
from collections.abc import Callable
from pathlib import Path
from typing import Any

from IPython.display import Markdown


def show_source(thing: Callable[..., Any] | type, *, doc: bool = True) -> Markdown:
    """The source of a class, method or function, as the package has it, with where it stands.

    ``doc=False`` leaves the docstring out, where the prose around already says it.
    """
    lines, first = inspect.getsourcelines(thing)
    code = textwrap.dedent("".join(lines)).rstrip()
    if not doc and (text := thing.__doc__):
        start = code.index('"""')
        end = code.index('"""', start + 3) + 3
        assert text.strip().splitlines()[0].strip() in code[start:end], "that was not the docstring"
        code = code[: code.rindex("\n", 0, start)] + code[end:]
    return Markdown(f"```python\n{code}\n```\n\n*`{_file(thing)}`, line {first}*")


def _file(thing: Callable[..., Any] | type) -> str:
    """Where a thing stands: its path from the package on."""
    path = Path(inspect.getsourcefile(thing) or "?")
    package = thing.__module__.split(".", 1)[0]
    return "/".join(path.parts[path.parts.index(package) :]) if package in path.parts else path.name


def show_lines(thing: Callable[..., Any] | type, *marks: str) -> Markdown:
    """The lines of a source that contain one of ``marks``, dedented, and where they stand.

    Raises ``ValueError`` on a mark that no line contains: then the code has moved on, and so must the text.
    """
    lines, first = inspect.getsourcelines(thing)
    code = textwrap.dedent("".join(lines)).splitlines()
    if missing := [mark for mark in marks if not any(mark in line for line in code)]:
        raise ValueError(f"marks: {missing} are in no line of {thing.__qualname__}")
    chosen = {first + i: line for i, line in enumerate(code) if any(mark in line for mark in marks)}
    body = textwrap.dedent("\n".join(chosen.values()))
    where = f"line{'s' if len(chosen) > 1 else ''} {', '.join(map(str, chosen))}"
    return Markdown(f"```python\n{body}\n```\n\n*`{_file(thing)}`, {where}*")


def say(text: str, /, **numbers: object) -> Markdown:
    """Prose with numbers from the run: ``say("took {seconds:.1f} s", seconds=t)``.

    The text is dedented, so it can be written with the indentation of the cell. A number that is
    None (undefined) reads "undefined", whatever its format.
    """
    shown = {name: _Undefined() if value is None else value for name, value in numbers.items()}
    return Markdown(textwrap.dedent(text).strip().format(**shown))


class _Undefined:
    """Formats as one word under any format."""

    def __format__(self, spec: str) -> str:
        return "undefined"
