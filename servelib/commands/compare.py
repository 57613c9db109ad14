"""``servelib compare``: which of two results is better, by how much, or that nothing can be said."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from servelib.commands.options import Parser, UsageError, output_file
from servelib.commands.save import save
from servelib.errors import InvalidRequestError
from servelib.harness.compare import Difference, Verdict, compare
from servelib.harness.conditions import finite_rate, where
from servelib.harness.metrics import SLO
from servelib.harness.report import to_json
from servelib.harness.results import Result, common_runs, differing, read_results
from servelib.harness.stats import Estimate

HELP = """\
Compare two results, run by run on their common traces. Different workloads are refused.

examples:
  servelib bench --engine naive  --json a.json
  servelib bench --engine cached --json b.json
  servelib compare a.json b.json
"""


def add_compare(commands: argparse._SubParsersAction[Parser]) -> None:
    """Add ``compare``."""
    parser = commands.add_parser("compare", help="say which of two results is better", description=HELP)
    parser.add_argument("a", type=Path, metavar="A.json", help="written by bench or sweep --json")
    parser.add_argument("b", type=Path, metavar="B.json", help="of the same workload")
    parser.add_argument("--json", type=output_file, metavar="FILE", help="write the comparison here")
    parser.set_defaults(parser=parser, run=_run)


def _run(options: argparse.Namespace) -> int:
    try:
        a, b = read_results(options.a), read_results(options.b)
        if [one.rate for one in a] != [two.rate for two in b]:
            rates = [two.rate for two in b]
            raise InvalidRequestError("rates of B", rates, f"{[one.rate for one in a]}, as in A")
        found = [_at_one_rate(one, two) for one, two in zip(a, b, strict=True)]
    except InvalidRequestError as error:
        raise UsageError(str(error)) from None
    if options.json is not None:
        content = {"a": a[0].conditions, "b": b[0].conditions, "rates": [_for_json(*each) for each in found]}
        save(options.json, to_json(content))
    print(_heading(options, a[0], b[0]))
    for rate, differences in found:
        at = where(rate, a[0].conditions["arrivals"])
        print(f"\n{at[0].upper()}{at[1:]}, {max(d.pairs for d in differences)} pairs of runs:")
        print(_table(differences))
        print(_conclusion(differences))
    print("\n" + _care(a[0]))
    return 0


def _at_one_rate(a: Result, b: Result) -> tuple[float, list[Difference]]:
    slo = a.conditions["slo"]
    return a.rate, compare(*common_runs(a, b), SLO(slo["ttft"], slo["gap"]))


def _heading(options: argparse.Namespace, a: Result, b: Result) -> str:
    lines = [f"A: {options.a}: {a.conditions['line']}", f"B: {options.b}: {b.conditions['line']}"]
    changed = [f"{name} ({one} / {two})" for name, (one, two) in differing(a, b).items()]
    return "\n".join([*lines, "They differ in: " + (", ".join(changed) or "nothing that is known") + "."])


def _table(differences: Sequence[Difference]) -> str:
    rows = [["metric", "A", "B", "B - A", "B / A", "pairs", "verdict"]]
    for d in differences:
        numbers = [_number(d.a), _number(d.b), _estimate(d.difference), _estimate(d.ratio)]
        rows.append([d.metric, *numbers, str(d.pairs), d.verdict.value])
    widths = [max(len(row[i]) for row in rows) for i in range(len(rows[0]))]
    return "\n".join("  ".join(c.ljust(w) for c, w in zip(row, widths, strict=True)).rstrip() for row in rows)


def _conclusion(differences: Sequence[Difference]) -> str:
    parts = []
    for verdict, other in ((Verdict.A, "A is better in"), (Verdict.B, "B is better in")):
        if names := [_by_how_much(d) for d in differences if d.verdict is verdict]:
            parts.append(f"{other} {', '.join(names)}")
    unknown = [d.metric for d in differences if d.verdict is Verdict.NOTHING]
    if unknown:
        parts.append(f"nothing can be said of {', '.join(unknown)}" if parts else "Nothing can be said")
    return "; ".join(parts) + "."


def _by_how_much(d: Difference) -> str:
    if d.ratio.value is None:
        return f"{d.metric} (B - A: {_estimate(d.difference)})"
    change = f"{d.ratio.value - 1:+.1%}"
    if d.ratio.low is not None and d.ratio.high is not None:
        change += f" [{d.ratio.low - 1:+.1%}, {d.ratio.high - 1:+.1%}]"
    return f"{d.metric} (B: {change})"


def _care(a: Result) -> str:
    lines = [
        "Seconds, and per second. In brackets, Student's 95 % interval over pairs of runs on the same trace; "
        "of equal engines, one metric in 20 shows a difference by chance."
    ]
    if a.conditions["clock"] == "wall":
        lines.append(
            "The files were measured one after the other: "
            "a machine that changed meanwhile shows as a difference."
        )
    return "\n".join(lines)


def _number(value: float | None) -> str:
    return "-" if value is None else f"{value:.4g}"


def _estimate(estimate: Estimate) -> str:
    interval = "" if estimate.interval is None else " [{:.4g}, {:.4g}]".format(*estimate.interval)
    return _number(estimate.value) + interval


def _for_json(rate: float, differences: Sequence[Difference]) -> dict[str, Any]:
    metrics = [{**asdict(d), "verdict": d.verdict.value} for d in differences]
    return {"rate": finite_rate(rate), "metrics": metrics}
