"""Callers who hang up: what they leave behind in the engine, and what it does to those who stay."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import plotly.graph_objects as go

from servelib.clock import VirtualClock
from servelib.engine.protocol import Engine, Model
from servelib.harness.drive import drive
from servelib.harness.metrics import ttft
from servelib.harness.trace import REFERENCE_WORKLOAD, Trace, Workload, stream_rng
from servelib.model.config import REFERENCE
from servelib.notebook.figures import PALETTE, base_layout
from servelib.request import FinishReason, Request, StepOutput
from servelib.sim.cost import Cost
from servelib.sim.model import CostedModel

MakeEngine = Callable[[Model, VirtualClock], Engine]


class ImpatientCallers:
    """An engine seen by callers of whom some hang up: a fraction ``share`` of them, drawn by ``seed``.

    They go after a fraction ``after`` of their tokens, at least one. From then on they take no tokens;
    what the engine still computes for them is counted in ``wasted``, all tokens in ``computed``.
    """

    def __init__(self, engine: Engine, share: float, *, after: float = 0.25, seed: int = 7) -> None:
        self.name = engine.name
        self.computed = self.wasted = 0
        self._engine, self._share, self._after, self._seed = engine, share, after, seed
        self._patience: dict[str, int] = {}  # of those who will leave: tokens they still take
        self._gone: set[str] = set()

    @property
    def model(self) -> Model:
        """The engine's."""
        return self._engine.model

    @property
    def has_work(self) -> bool:
        """The engine's."""
        return self._engine.has_work

    def add_request(self, request: Request) -> None:
        """Pass it on. The same requests leave at every rate, and more of them at a larger share."""
        if stream_rng(self._seed, request.request_id).random() < self._share:
            self._patience[request.request_id] = max(1, int(self._after * request.sampling.max_tokens))
        self._engine.add_request(request)

    def step(self) -> list[StepOutput]:
        """One step of the engine; whoever has had enough hangs up when it is over."""
        return [seen for output in self._engine.step() if (seen := self._deliver(output)) is not None]

    def abort(self, request_id: str) -> None:
        """Pass it on."""
        self._engine.abort(request_id)

    def _deliver(self, output: StepOutput) -> StepOutput | None:
        name = output.request_id
        self.computed += len(output.tokens)
        if name in self._gone:
            self.wasted += len(output.tokens)
            return None
        if name not in self._patience or output.finish_reason is not None:
            return output
        self._patience[name] -= len(output.tokens)
        if self._patience[name] > 0:
            return output
        self._gone.add(name)
        self._engine.abort(name)
        return replace(output, finish_reason=FinishReason.ABORT)


@dataclass(frozen=True, slots=True)
class Aftermath:
    """What a share of callers who hang up did: the median TTFT of those who stayed, and the waste."""

    share: float
    ttft: float
    wasted: float  # of all tokens that were computed


def aftermath(
    make: MakeEngine,
    cost: Cost,
    rate: float,
    share: float,
    *,
    runs: int = 5,
    workload: Workload | None = None,
) -> Aftermath:
    """Play the workload in virtual time, ``runs`` times, and let a share of the callers hang up."""
    waits: list[float] = []
    computed = wasted = 0
    for run in range(runs):
        clock = VirtualClock()
        callers = ImpatientCallers(make(CostedModel(REFERENCE, cost, clock), clock), share, seed=7 + run)
        trace: Trace = (workload or REFERENCE_WORKLOAD).trace(rate, run)
        record = drive(callers, trace, clock)
        while callers.has_work:  # for callers who have gone
            callers.step()
        waits += [wait for r in record.requests if r.ok and (wait := ttft(r)) is not None]
        computed, wasted = computed + callers.computed, wasted + callers.wasted
    return Aftermath(share, statistics.median(waits), wasted / computed)


def aftermath_figure(
    found: dict[float, tuple[Sequence[Aftermath], Sequence[Aftermath]]], *, start: float, alt: str
) -> go.Figure:
    """TTFT of those who stay against the share of those who leave; a frame an arrival rate.

    ``found`` maps a rate to the results of two engines at the same shares: without abort, with abort.
    """
    fig = go.Figure(layout=base_layout(alt=alt, height=420))
    looks = (("no abort", "orange", "square", "dash"), ("abort", "blue", "circle", "solid"))
    for (name, colour, symbol, dash), rows in zip(looks, found[start], strict=True):
        fig.add_scatter(
            x=[100 * row.share for row in rows], y=[row.ttft for row in rows], name=name,
            mode="lines+markers", line={"color": PALETTE[colour], "width": 2.5, "dash": dash},
            marker={"symbol": symbol, "size": 9, "color": PALETTE[colour]},
            hovertemplate="%{x:.0f} % leave: %{y:.3g} s<extra>" + name + "</extra>",
        )  # fmt: skip
    fig.update_xaxes(title="callers who hang up, %")
    fig.update_yaxes(title="TTFT p50 of those who stay, seconds", rangemode="tozero")
    fig.update_layout(legend={"orientation": "h", "x": 0, "y": 1.02, "yanchor": "bottom"})
    rates = list(found)
    fig.layout.meta = {"alt": alt, "control": {"label": "arrival rate", "initial": rates.index(start)}}
    fig.frames = [
        go.Frame(
            name=f"{rate:g} req/s; if {100 * none[-1].share:.0f} % leave: "
            f"{none[-1].ttft:.2f} s without abort, {some[-1].ttft:.2f} s with it",
            traces=[0, 1],
            data=[go.Scatter(y=[row.ttft for row in rows]) for rows in (none, some)],
        )
        for rate, (none, some) in found.items()
    ]
    return fig
