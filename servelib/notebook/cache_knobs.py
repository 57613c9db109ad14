"""The panel "does it fit?": requests, context, model and machine against the memory that they take."""

from __future__ import annotations

import dataclasses
import html

import ipywidgets as w
import plotly.graph_objects as go

from servelib.errors import InvalidRequestError, check_int
from servelib.model.config import ModelConfig
from servelib.notebook.arithmetic import DEVICES, FORMATS
from servelib.notebook.figures import PALETTE, base_layout
from servelib.notebook.panel import Panel, dropdown, live, pick_slider
from servelib.sim.machines import machine_named, machines
from servelib.sim.models import model_named, models
from servelib.sim.shape import kv_bytes_per_token, weight_bytes

REQUESTS = tuple(2**i for i in range(11))
TOKENS = tuple(2**i for i in range(4, 18))
HEADS = (("as built", ""), ("one for each query head", "each"), ("one for all query heads", "one"))


def cache_knobs(
    *,
    requests: int = 32,
    tokens: int = 2048,
    model: str = "llama3-8b",
    machine: str = "h100",
    devices: int = 1,
) -> CacheKnobs:
    """Show the panel: make it the last line of a cell. Every move is counted, nothing is run.

    Raises ``InvalidRequestError`` on an unknown machine or model.
    """
    machine_named(machine)
    model_named(model)
    return CacheKnobs(requests, tokens, model, machine, devices)


class CacheKnobs(Panel):
    """The panel. Its controls are attributes, so that code can turn them too."""

    def __init__(self, requests: int, tokens: int, model: str, machine: str, devices: int) -> None:
        self.requests = pick_slider("requests held at once", requests, REQUESTS)
        self.tokens = pick_slider("tokens of each", tokens, TOKENS)
        self.devices = pick_slider("devices", devices, DEVICES)
        self.model = dropdown("model", model, [(found.label, name) for name, found in models().items()])
        self.machine = dropdown(
            "machine", machine, [(found.name, name) for name, found in machines().items()]
        )
        self.heads = dropdown("key-value heads", "", HEADS)
        self.dtype = dropdown("number format", "", [("the model's own", ""), *((f, f) for f in FORMATS)])
        self.headline = w.HTML()
        self.figure = live(_bars(1.0, 1.0, 1.0))
        super().__init__(
            [self.requests, self.tokens, self.model, self.heads, self.machine, self.devices, self.dtype],
            [self.headline, self.figure],
        )
        self.refresh()

    def refresh(self) -> None:
        """Bring headline and figure up to the knobs, or say in one line why it cannot be."""
        try:
            config = self._config()
            check_int(
                "tokens of each", self.tokens.value, 1, config.context, why=f"the context of {config.label}"
            )
        except InvalidRequestError as error:
            self.headline.value = f'<div role="alert">{html.escape(str(error))}</div>'
            return
        memory = self.devices.value * machine_named(self.machine.value).memory.value
        weights, each = weight_bytes(config), kv_bytes_per_token(config) * self.tokens.value
        cache = each * self.requests.value
        said = _said(config, weights, each, cache, memory)
        drawn = _bars(weights, cache, memory)
        with self.figure.batch_update():
            for shown, new in zip(self.figure.data, drawn.data, strict=True):
                shown.x = new.x
            self.figure.layout.xaxis.range = drawn.layout.xaxis.range
            self.figure.layout.meta = {"alt": said}
        self.headline.value = f'<div role="status">{html.escape(said)}</div>'

    def _config(self) -> ModelConfig:
        config = model_named(self.model.value)
        if self.dtype.value:
            config = dataclasses.replace(config, dtype=self.dtype.value)
        if self.heads.value:
            heads = config.heads if self.heads.value == "each" else 1
            config = dataclasses.replace(config, kv_heads=heads)
        return config


def _said(config: ModelConfig, weights: float, each: float, cache: float, memory: float) -> str:
    a_token = kv_bytes_per_token(config)
    size = f"{a_token / 1024:,.4g} KiB" if a_token >= 1024 else f"{a_token} bytes"
    if weights > memory:
        taken = f"{weights / 1e9:,.3g} GB of {memory / 1e9:,.3g}"
        return f"The weights alone take {taken}: take more devices, or fewer bits."
    fit = int((memory - weights) // each)
    verdict = "They fit." if weights + cache <= memory else "They do not fit."
    return (
        f"A token keeps {size}, a request {each / 1e9:,.3g} GB, all together {cache / 1e9:,.3g} GB beside "
        f"{weights / 1e9:,.3g} GB of weights, in {memory / 1e9:,.3g} GB. {verdict} At most {fit:,} do."
    )


def _bars(weights: float, cache: float, memory: float) -> go.Figure:
    fig = go.Figure(layout=base_layout(alt="Weights and caches beside the memory.", height=190))
    rows = ["taken", "memory"]
    for name, values, colour, pattern in (
        ("weights", [weights, 0.0], "grey", ""),
        ("keys and values", [cache, 0.0], "blue", "/"),
        ("memory", [0.0, memory], "green", ""),
    ):
        fig.add_bar(
            x=[value / 1e9 for value in values], y=rows, orientation="h", name=name,
            marker={"color": PALETTE[colour], "pattern": {"shape": pattern, "size": 6, "solidity": 0.4}},
            hovertemplate=f"{name}: %{{x:,.3~g}} GB<extra></extra>",
        )  # fmt: skip
    # Past a few times the memory a longer bar says nothing more, and the memory would not be seen.
    fig.update_xaxes(title="GB", range=[0, 1.05 * min(max(memory, weights + cache), 4 * memory) / 1e9])
    fig.update_yaxes(autorange="reversed", automargin=True)
    fig.update_layout(
        barmode="stack", bargap=0.3, legend={"orientation": "h", "x": 0, "y": 1.02, "yanchor": "bottom"}
    )
    return fig
