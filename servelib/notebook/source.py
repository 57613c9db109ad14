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
    path = Path(inspect.getsourcefile(thing) or "?")
    package = thing.__module__.split(".", 1)[0]
    shown = "/".join(path.parts[path.parts.index(package) :]) if package in path.parts else path.name
    return Markdown(f"```python\n{code}\n```\n\n*`{shown}`, line {first}*")


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
