"""Tables for the chapters: results with their intervals, and the conditions line under them."""

from __future__ import annotations

import html
from collections.abc import Sequence
from dataclasses import dataclass

from servelib.harness.facts import run_line
from servelib.harness.stats import Estimate
from servelib.harness.sweep import Point
from servelib.spans import Span, Stage


@dataclass(frozen=True, slots=True)
class Table:
    """Rows under headers, with a caption for those who hear it and a note below.

    Shows itself as HTML in a notebook or the book, and as text elsewhere. A cell may hold a second
    line after a newline: an interval, in small print.
    """

    headers: Sequence[str]
    rows: Sequence[Sequence[str]]
    caption: str
    note: str = ""
    words: bool = False

    def _repr_html_(self) -> str:
        head = "".join(f'<th scope="col">{_lines(header)}</th>' for header in self.headers)
        # In a live notebook there is no style sheet of ours, and cells would stand to the right.
        side = ' style="text-align:left"' if self.words else ""
        body = "".join(
            "<tr>"
            + f'<th scope="row"{side}>{_lines(row[0])}</th>'
            + "".join(f"<td{side}>{_lines(cell)}</td>" for cell in row[1:])
            + "</tr>"
            for row in self.rows
        )
        note = "".join(f'<p class="sl-conditions">{html.escape(line)}</p>' for line in self.note.splitlines())
        # tabindex: a table wider than the screen scrolls, and must do so by keyboard too.
        kind = "sl-table sl-words" if self.words else "sl-table"
        return (
            f'<div class="{kind}" tabindex="0" role="region" aria-label="{html.escape(self.caption)}">'
            f"<table><caption>{html.escape(self.caption)}</caption>"
            f"<thead><tr>{head}</tr></thead><tbody>{body}</tbody></table></div>{note}"
        )

    def __repr__(self) -> str:
        cells = [[text.replace("\n", " ") for text in row] for row in [self.headers, *self.rows]]
        widths = [max(len(row[i]) for row in cells) for i in range(len(self.headers))]
        lines = ["  ".join(c.rjust(w) for c, w in zip(row, widths, strict=True)) for row in cells]
        return "\n".join([self.caption, *lines, *([self.note] if self.note else [])])


def results(points: Sequence[Point], *, caption: str) -> Table:
    """One column an arrival rate, one row a metric, so that three rates fit a phone.

    Under each value stands its interval; under the table, the conditions line.
    """
    rows = [
        [label, *(_estimate(getattr(point.summary, name), scale) for point in points)]
        for name, label, scale in _METRICS
    ]
    for name in ("completed", "failed"):
        rows.append([f"{name}\nrequests", *(f"{getattr(point.summary, name)}" for point in points)])
    headers = ("arrival rate", *(point.label for point in points))
    return Table(headers, rows, caption, _notes(points) if points else "")


def _notes(points: Sequence[Point]) -> str:
    """What was measured, under what, and what to be careful about."""
    about = points[0].conditions
    notes = [f"SLO: first token within {about.slo_ttft:g} s, every gap within {about.slo_gap:g} s."]
    if about.runs > 1:
        notes.append(f"Intervals: 95 %, Student t over {about.runs} runs, cut to what is possible.")
    for name, label, _ in _METRICS:
        warnings = {note for p in points if (note := getattr(p.summary, name).note)}
        notes += [f"{label.split(chr(10))[0]}: {warning}." for warning in sorted(warnings)]
    conditions = about.over(tuple(point.rate for point in points)).line()
    return "\n".join([conditions, run_line(points), " ".join(notes)])


_METRICS = (  # name, label and unit, factor from the unit in which it is kept
    ("ttft_p50", "TTFT p50\ns", 1.0),
    ("ttft_p95", "TTFT p95\ns", 1.0),
    ("ttft_p99", "TTFT p99\ns", 1.0),
    ("gap_p50", "gap p50\nms", 1e3),
    ("gap_p99", "gap p99\nms", 1e3),
    ("output_tokens_per_second", "output rate\ntokens/s", 1.0),
    ("goodput_per_second", "goodput\nreq/s", 1.0),
    ("goodput_fraction", "goodput\nfraction", 1.0),
)


def stages(spans: Sequence[Span], *, caption: str, note: str = "") -> Table:
    """One row a stage: how often it was visited, how long it took in all, its share of the whole.

    Stages overlap: while one fragment is streamed, the engine is at the next token. So shares may
    add up to more than 1; the last row is the time in which no stage ran.
    """
    begin = min(span.start for span in spans)
    whole = max(span.end for span in spans) - begin
    rows = []
    for stage in Stage:
        of_stage = [span.seconds for span in spans if span.stage is stage]
        rows.append(
            [stage.value, f"{len(of_stage)}", f"{1e3 * sum(of_stage):.3f}", f"{sum(of_stage) / whole:.1%}"]
        )
    idle, covered = 0.0, begin
    for span in sorted(spans, key=lambda span: span.start):
        idle += max(0.0, span.start - covered)
        covered = max(covered, span.end)
    rows.append(["no stage", "", f"{1e3 * idle:.3f}", f"{idle / whole:.1%}"])
    return Table(("stage", "visits", "total ms", "share"), rows, caption, note)


def _estimate(estimate: Estimate, scale: float) -> str:
    if estimate.value is None:
        return "undefined"
    shown = _three_digits(scale * estimate.value)
    if estimate.low is None or estimate.high is None:
        return shown
    return f"{shown}\n{_three_digits(scale * estimate.low)}–{_three_digits(scale * estimate.high)}"


def _three_digits(value: float) -> str:
    """Three digits that count, and never more than thousandths: 0.014, 0.56, 2.16, 36.9, 215."""
    for digits, below in ((3, 0.1), (2, 10.0), (1, 100.0)):
        if round(value, digits) < below:
            return f"{value:.{digits}f}"
    return f"{value:.0f}"


def _lines(cell: str) -> str:
    first, *rest = cell.split("\n")
    return html.escape(first) + "".join(f"<br><small>{html.escape(line)}</small>" for line in rest)
