"""Reading and checking what is typed: one clear line, and exit code 2, for what cannot be meant."""

from __future__ import annotations

import argparse
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any, NoReturn

from servelib.clock import VirtualClock
from servelib.engine.registry import BATCH_SIZE, ENGINES, MAX_NUM_SEQS, make_engine
from servelib.errors import InvalidRequestError
from servelib.harness.lengths import Lengths, LogNormal, Uniform, lengths_from_file
from servelib.harness.lines import is_file
from servelib.harness.report import check_writable
from servelib.harness.trace import SharedPrefix
from servelib.model.scripted import ScriptedModel

MOST_REQUESTS, MOST_TOKENS, MOST_RUNS = 1_000_000, 10_000_000, 10_000  # a slip of the keyboard ends here


class UsageError(ValueError):
    """The arguments cannot be meant together; the message says why and what to do."""


class Parser(argparse.ArgumentParser):
    """An argument parser whose errors are one line on stderr and exit code 2."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        kwargs.setdefault("allow_abbrev", False)
        kwargs.setdefault("formatter_class", argparse.RawDescriptionHelpFormatter)
        super().__init__(*args, **kwargs)

    def error(self, message: str) -> NoReturn:
        """Print the message alone, not the usage, and exit."""
        one_line = " ".join(message.split())
        self.exit(2, f"{self.prog}: error: {one_line} (see {self.prog} --help)\n")


def short(text: str) -> str:
    """What was typed, quoted and cut where it would fill the screen."""
    return repr(text) if len(text) <= 300 else f"{text[:80]!r}..."


def integer(low: int, high: int | None = None) -> Callable[[str], int]:
    """A reader of integers in [low, high]."""

    def read(text: str) -> int:
        limit = f">= {low}" if high is None else f"from {low} to {high}"
        try:
            value = int(text)
        except ValueError:
            value = low - 1
        if value < low or (high is not None and value > high):
            raise argparse.ArgumentTypeError(f"got {short(text)}, must be an integer {limit}")
        return value

    return read


def any_integer(text: str) -> int:
    """An integer; 0 and negative ones too."""
    try:
        return int(text)
    except ValueError:
        raise argparse.ArgumentTypeError(f"got {short(text)}, must be an integer") from None


def positive(text: str) -> float:
    """A finite number above 0."""
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not (math.isfinite(value) and value > 0):
        raise argparse.ArgumentTypeError(f"got {short(text)}, must be a finite number above 0")
    return value


def fraction(text: str) -> float:
    """A number above 0, up to 1."""
    value = positive(text)
    if value > 1:
        raise argparse.ArgumentTypeError(f"got {short(text)}, must be above 0 and at most 1")
    return value


def rate(text: str) -> float:
    """A finite number above 0, or ``inf``: everything at once."""
    return math.inf if text == "inf" else positive(text)


def shared_prefix(text: str) -> SharedPrefix:
    """``64``, one prefix of 64 tokens; ``64:8``, one for each of 8 groups."""
    tokens, colon, groups = text.partition(":")
    return SharedPrefix(integer(1, MOST_TOKENS)(tokens), integer(1, MOST_REQUESTS)(groups) if colon else 1)


def lengths(text: str) -> Lengths:
    """``32-96``, every length from 32 to 96; ``64``, always 64; a log-normal law; or a file of lengths."""
    name, *details = text.split(":")
    try:
        if name == "lognormal" and len(details) == 3:
            bounds = _uniform(details[2])
            return LogNormal(positive(details[0]), positive(details[1]), bounds.low, bounds.high)
        if is_file(text):
            return lengths_from_file(Path(text))
    except InvalidRequestError as error:
        raise argparse.ArgumentTypeError(str(error)) from None
    return _uniform(text)


def _uniform(text: str) -> Uniform:
    low, dash, high = text.partition("-")
    wanted = (
        f"got {short(text)}, must be LOW-HIGH with 1 <= LOW <= HIGH <= {MOST_TOKENS}, such as 32-96, "
        "one number, lognormal:MEDIAN:SIGMA:LOW-HIGH or a file with one length a line"
    )
    if not (low.isdecimal() and (high.isdecimal() if dash else not high)):
        raise argparse.ArgumentTypeError(wanted)
    if max(len(low), len(high)) > len(str(MOST_TOKENS)):  # Python reads no integer of thousands of digits
        raise argparse.ArgumentTypeError(wanted)
    first, last = int(low), int(high or low)
    if not 1 <= first <= last <= MOST_TOKENS:
        raise argparse.ArgumentTypeError(wanted)
    return Uniform(first, last)


def rates(text: str) -> list[float]:
    """``1,4,8``, those rates; or ``0.25:16:20``, twenty from 0.25 to 16, each the same factor apart."""
    if ":" not in text:
        return [positive(part.strip()) for part in text.split(",")]
    parts = text.split(":")
    if len(parts) != 3:
        raise argparse.ArgumentTypeError(f"got {short(text)}, must be LOW:HIGH:COUNT, such as 0.25:16:20")
    low, high, count = positive(parts[0]), positive(parts[1]), integer(2, 1000)(parts[2])
    if low >= high:
        raise argparse.ArgumentTypeError(f"got {short(text)}, must have LOW below HIGH")
    middle = [low * (high / low) ** (i / (count - 1)) for i in range(1, count - 1)]
    return [low, *middle, high]


def output_file(text: str) -> Path:
    """A path that can be written: found out now, not after the run."""
    path = Path(text)
    try:
        check_writable(path)
    except OSError as error:
        raise argparse.ArgumentTypeError(f"cannot write {short(text)}: {error.strerror or error}") from None
    return path


DEFAULT_ENGINE = "naive"
ENGINE_OPTIONS = ("batch_size", "max_num_seqs", "max_num_batched_tokens")


def add_engine(parser: argparse.ArgumentParser, default: str = DEFAULT_ENGINE) -> None:
    """The options that choose the engine, and how much it takes at once."""
    add = parser.add_argument
    add("--engine", choices=list(ENGINES), default=default, help=f"which engine serves (default: {default})")
    add("--batch-size", type=integer(1, MOST_REQUESTS), metavar="N",
        help=f"static: requests in a batch (default: {BATCH_SIZE})")  # fmt: skip
    add("--max-num-seqs", type=integer(1, MOST_REQUESTS), metavar="N",
        help=f"continuous: requests in a step at most (default: {MAX_NUM_SEQS})")  # fmt: skip
    add("--max-num-batched-tokens", type=integer(1, MOST_TOKENS), metavar="N",
        help="continuous: tokens in a step at most (default: 2048, or the context if larger)")  # fmt: skip


def engine_options(options: argparse.Namespace, engine: str) -> dict[str, int]:
    """What was given of the options of ``engine``. Raises ``UsageError`` on those of another."""
    given = {name: getattr(options, name) for name in ENGINE_OPTIONS if getattr(options, name) is not None}
    try:
        make_engine(engine, ScriptedModel([0]), VirtualClock(), None, **given)  # what cannot be is said now
    except InvalidRequestError as error:
        raise UsageError(f"--{error.field.replace('_', '-')}: must be {error.limit}") from None
    return given
