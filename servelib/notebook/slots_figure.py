"""The picture of slots over time: who holds which place of a batch, and which places are wasted."""

from __future__ import annotations

import string
from collections.abc import Mapping, Sequence

import plotly.graph_objects as go
from plotly.subplots import make_subplots

from servelib.notebook.figures import PALETTE, base_layout
from servelib.notebook.slot_watch import Piece, Watched

FRAMES = 36
_COLOURS = ("blue", "orange", "green", "purple")
_LOOKS = {"prompt": "x", "answer": "", "wasted": "/"}  # pattern of each, so that nothing hangs on colour


def slots_over_time(runs: Mapping[str, Watched], *, alt: str, frames: int = FRAMES) -> go.Figure:
    """Places against time, an engine a panel: a bar for each stretch that a request holds a place.

    Requests have letters in the order in which they came. Crossed bars are prompts, plain ones answers,
    hatched ones waste. Frames go through time, and the last is shown first: the whole picture.
    ``runs`` are of one trace. Raises ``ValueError`` where they are not.
    """
    letters = _letters(runs)
    end = max(watched.run.duration for watched in runs.values())
    times = [end * (i + 1) / frames for i in range(frames)]
    fig = make_subplots(rows=len(runs), cols=1, shared_xaxes=True, vertical_spacing=0.07)
    for row, (name, watched) in enumerate(runs.items(), start=1):
        for trace in _traces(watched, letters, end, legend=row == 1):
            fig.add_trace(trace, row=row, col=1)
        places = list(range(watched.places))
        fig.update_yaxes(
            title=name, range=[watched.places - 0.4, -0.6], tickvals=places, showgrid=False, zeroline=False,
            ticktext=[str(place + 1) for place in places], row=row, col=1,
        )  # fmt: skip
    fig.update_xaxes(range=[0, 1020 * end], zeroline=False)
    fig.update_xaxes(title="time (ms, charged by the step cost)", row=len(runs), col=1)
    fig.update_layout(base_layout(alt=alt, height=170 + 155 * len(runs)), barmode="overlay", bargap=0.12)
    fig.update_layout(legend={"orientation": "h", "x": 0, "y": 1.02, "yanchor": "bottom"})
    fig.layout.meta = {"alt": alt, "control": {"label": "time", "initial": frames - 1}}
    fig.frames = [
        go.Frame(
            name=moment(runs, now, letters),
            traces=list(range(len(fig.data))),
            data=[trace for watched in runs.values() for trace in _moved(watched, letters, now)],
        )
        for now in times
    ]
    return fig


def moment(runs: Mapping[str, Watched], now: float, letters: Mapping[str, str]) -> str:
    """One moment in words: of each engine who runs, how many places are wasted, who waits."""
    said = []
    for name, watched in runs.items():
        held = [piece for piece in watched.pieces if piece.start < now <= piece.end]
        run = {piece.request_id for piece in held if not piece.wasted or piece.kind == "padding"}
        begun = {piece.request_id for piece in watched.pieces if piece.start < now}
        wait = [r.request_id for r in watched.run.requests if r.scheduled < now and r.request_id not in begun]
        parts = [f"{_named(run, letters)} run" + ("s" if len(run) == 1 else "") if run else "nobody runs"]
        if finished := sum(piece.kind == "finished" for piece in held):
            parts.append(f"{finished} finished row{'s' if finished > 1 else ''} kept")
        if wait:
            parts.append(f"{_named(wait, letters)} wait" + ("s" if len(wait) == 1 else ""))
        said.append(f"{name}: {', '.join(parts)}")
    return f"{1e3 * now:.0f} ms. " + "; ".join(said)


def _letters(runs: Mapping[str, Watched]) -> dict[str, str]:
    first, *others = ([r.request_id for r in watched.run.requests] for watched in runs.values())
    if any(names != first for names in others):
        raise ValueError("runs: the requests differ from engine to engine, must be of one trace")
    if len(first) > len(string.ascii_uppercase):
        raise ValueError(f"runs: got {len(first)} requests, must be at most {len(string.ascii_uppercase)}")
    return dict(zip(first, string.ascii_uppercase, strict=False))


def _named(names: Sequence[str] | set[str], letters: Mapping[str, str]) -> str:
    return " ".join(sorted(letters[name] for name in names))


def _shown(piece: Piece) -> str:
    return "wasted" if piece.wasted else piece.kind


def _traces(
    watched: Watched, letters: Mapping[str, str], now: float, *, legend: bool
) -> list[go.Bar | go.Scatter]:
    """Bars of each kind, the letters on them, and a line at ``now``."""
    traces: list[go.Bar | go.Scatter] = []
    moved = _moved(watched, letters, now)
    order = list(letters)
    for (kind, pattern), bars in zip(_LOOKS.items(), moved[:3], strict=True):
        pieces = [piece for piece in watched.pieces if _shown(piece) == kind]
        colours = [
            PALETTE["grey"] if kind == "wasted" else PALETTE[_COLOURS[order.index(p.request_id) % 4]]
            for p in pieces
        ]
        faint = [f"rgba({','.join(str(int(c[i : i + 2], 16)) for i in (1, 3, 5))},0.3)" for c in colours]
        bars.update(
            y=[piece.place for piece in pieces], base=[1e3 * piece.start for piece in pieces],
            orientation="h", name=kind, showlegend=legend, legendgroup=kind,
            marker={
                "color": colours if pattern else faint,
                "line": {"color": colours, "width": 1.5},
                "pattern": {"shape": pattern, "bgcolor": "rgba(0,0,0,0)", "size": 7, "solidity": 0.2},
            },
            customdata=[
                f"{letters[p.request_id]}: {p.kind}, {1e3 * p.start:.0f} to {1e3 * p.end:.0f} ms"
                for p in pieces
            ],
            hovertemplate="%{customdata}<extra></extra>",
        )  # fmt: skip
        traces.append(bars)
    traces.append(moved[3].update(mode="text", showlegend=False, hoverinfo="skip"))
    line = {"color": PALETTE["grey"], "width": 1.5, "dash": "dot"}
    traces.append(moved[4].update(mode="lines", line=line, showlegend=False, hoverinfo="skip"))
    return traces


def _moved(watched: Watched, letters: Mapping[str, str], now: float) -> list[go.Bar | go.Scatter]:
    """What changes with time, of each of one engine's traces: how far each bar has come."""
    traces: list[go.Bar | go.Scatter] = []
    for kind in _LOOKS:
        pieces = [piece for piece in watched.pieces if _shown(piece) == kind]
        come = [1e3 * (min(piece.end, now) - piece.start) for piece in pieces]
        traces.append(go.Bar(x=[length if length > 0 else None for length in come]))
    x, y, text = [], [], []
    for name, letter in letters.items():
        used = [p for p in watched.pieces if p.request_id == name and not p.wasted and p.start < now]
        if used:
            x.append(1e3 * (used[-1].start + min(used[-1].end, now)) / 2)
            y.append(used[-1].place)
            text.append(letter)
    traces.append(go.Scatter(x=x, y=y, text=text))
    traces.append(go.Scatter(x=[1e3 * now] * 2, y=[-0.5, watched.places - 0.5]))
    return traces
