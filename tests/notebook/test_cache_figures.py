"""Chapter 5's figures and panel: what they show is what was measured or counted."""

from __future__ import annotations

import pytest

from servelib.engine.naive import NaiveEngine
from servelib.errors import InvalidRequestError
from servelib.harness.sweep import sweep
from servelib.harness.trace import Workload
from servelib.model.config import REFERENCE
from servelib.notebook.cache_figures import (
    REQUESTS,
    Line,
    frame_name,
    memory_figure,
    token_times,
    tokens_each,
)
from servelib.notebook.cache_knobs import cache_knobs
from servelib.notebook.engines_figure import engines_under_load
from servelib.notebook.engines_figure import frame_name as rate_in_words
from servelib.notebook.render import described
from servelib.sim.cost import reference_cost
from servelib.sim.machines import machine_named
from servelib.sim.model import CostedModel
from servelib.sim.models import model_named
from servelib.sim.shape import kv_bytes_per_token, weight_bytes

LLAMA, H100 = model_named("llama3-8b"), machine_named("h100")
ROOM = H100.memory.value - weight_bytes(LLAMA)


def test_each_token_is_the_median_of_its_runs():
    runs = {"naive": [[0.01 * n for n in range(1, 31)]] * 2 + [[0.5] * 30], "cached": [[0.002] * 30]}
    lines = {"naive": Line(0.0, 0.01), "cached": Line(0.002, 0.0)}
    fig = token_times(runs, lines, alt="two kinds of token")
    assert described(fig.to_plotly_json())[0] == "two kinds of token"
    by_name = {trace.name: trace for trace in fig.data}
    assert list(by_name["naive"].y) == pytest.approx([10.0 * n for n in range(1, 31)])
    assert list(by_name["naive, fitted line"].y) == pytest.approx([20.0, 300.0])
    assert list(by_name["cached, fitted line"].y) == pytest.approx([2.0, 2.0])
    assert len({trace.marker.symbol for trace in fig.data if trace.mode == "markers"}) == 2
    assert "ms" in fig.layout.yaxis.title.text


def test_one_slow_moment_does_not_set_the_axis():
    seconds = [0.01] * 99 + [3.0]
    fig = token_times({"naive": [seconds]}, {"naive": Line(0.01, 0.0)}, alt="a")
    assert fig.layout.yaxis.range[1] < 20


def test_memory_adds_up_and_is_full_where_it_says():
    fig = memory_figure(LLAMA, H100, alt="memory")
    _, label, first = described(fig.to_plotly_json())
    assert (label, REQUESTS[first]) == ("requests held at once", 32)
    for requests, frame in zip(REQUESTS, fig.frames, strict=True):
        *_, built, _one, full = frame.data
        n, gigabytes = built.x[5], built.y[5]
        taken = weight_bytes(LLAMA) + requests * n * kv_bytes_per_token(LLAMA)
        assert gigabytes == pytest.approx(taken / 1e9)
        for end in full.x:
            assert end <= LLAMA.context
        end = tokens_each(LLAMA, ROOM, requests)
        assert end * requests * kv_bytes_per_token(LLAMA) <= ROOM
        assert (end + 1) * requests * kv_bytes_per_token(LLAMA) > ROOM
        assert (end in full.x) == (256 <= end <= LLAMA.context)
    assert len({frame.name for frame in fig.frames}) == len(REQUESTS)


def test_a_frame_in_words():
    assert frame_name(LLAMA, ROOM, 1).startswith(
        "1 request: room for all of the context, 131,072 tokens each"
    )
    each = tokens_each(LLAMA, ROOM, 32)
    assert f"32 requests: memory is full at {each:,} tokens each" in frame_name(LLAMA, ROOM, 32)
    assert frame_name(LLAMA, ROOM, 32).endswith(f"query head at {each // 4:,}")
    with pytest.raises(InvalidRequestError, match="requests"):
        tokens_each(LLAMA, ROOM, 0)


def test_the_panel_counts_what_fits():
    panel = cache_knobs(requests=32, tokens=2048)
    fit = int(ROOM // (2048 * kv_bytes_per_token(LLAMA)))
    assert "A token keeps 128 KiB" in panel.headline.value
    assert f"They fit. At most {fit:,} do." in panel.headline.value
    before = [list(trace.x) for trace in panel.figure.data]
    panel.requests.value = 1024
    assert "They do not fit." in panel.headline.value
    assert [list(trace.x) for trace in panel.figure.data] != before
    panel.heads.value = "each"
    assert "A token keeps 512 KiB" in panel.headline.value
    panel.heads.value, panel.dtype.value = "one", "float32"
    assert "A token keeps 32 KiB" in panel.headline.value
    assert (
        "They fit" in panel.figure.layout.meta["alt"] or "They do not fit" in panel.figure.layout.meta["alt"]
    )


def test_what_cannot_be_is_said_in_the_panel():
    panel = cache_knobs(model="llama3-70b")
    assert "The weights alone take 141 GB of 80" in panel.headline.value
    panel.devices.value = 2
    assert "beside 141 GB of weights" in panel.headline.value
    panel.model.value, panel.tokens.value = "qwen3-8b", 131_072
    assert 'role="alert"' in panel.headline.value
    assert "context of Qwen3 8B" in panel.headline.value
    with pytest.raises(InvalidRequestError, match="llama3-8b"):
        cache_knobs(model="llama")


@pytest.fixture(scope="module")
def curves():
    def make(use_cache):
        def engine(clock):
            return NaiveEngine(
                CostedModel(REFERENCE, reference_cost(), clock), use_cache=use_cache, clock=clock
            )

        return engine

    workload, rates = Workload(requests=6), [1, 4, 16]
    return {
        name: sweep(make(use), workload, rates, runs=2, clock="virtual")
        for name, use in (("naive", False), ("cached", True))
    }


def test_each_engine_has_its_line_and_its_marks(curves):
    fig = engines_under_load(curves, {"cached": curves["cached"][:1]}, alt="two engines", start=4)
    _, label, first = described(fig.to_plotly_json())
    assert (label, first) == ("arrival rate", 1)
    lines = [trace for trace in fig.data if trace.mode == "lines"]
    assert [trace.name for trace in lines] == ["naive", "cached"] * 3
    rate = [point.summary.output_tokens_per_second.value for point in curves["cached"]]
    assert list(lines[1].y) == rate
    measured = [trace for trace in fig.data if trace.name == "cached, measured"]
    assert [list(trace.x) for trace in measured] == [[1]] * 3
    for i, frame in enumerate(fig.frames):
        assert [mark.x[0] for mark in frame.data] == [curves["naive"][i].rate] * 6
        assert frame.data[1].y[0] == rate[i]
        assert len(frame.traces) == len(frame.data)
        assert max(frame.traces) < len(fig.data)
    dashes = {trace.line.dash for trace in lines}
    assert len(dashes) == 2


def test_a_rate_in_words(curves):
    said = rate_in_words({name: points[2] for name, points in curves.items()})
    assert said.startswith("16 req/s: naive ")
    assert "; cached " in said
    assert "goodput" in said


def test_engines_must_share_their_rates(curves):
    with pytest.raises(ValueError, match="rates differ"):
        engines_under_load({"a": curves["naive"], "b": curves["cached"][:2]}, alt="a")
    with pytest.raises(ValueError, match="at most 4"):
        engines_under_load(dict.fromkeys("abcde", curves["naive"]), alt="a")
