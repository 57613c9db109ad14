"""What the HTTP server costs, with no model to hide behind and with the reference model behind it.

    python benchmarks/server_overhead.py
    python benchmarks/server_overhead.py --json overhead.json --readme

1. 64 streams as fast as they come, from an engine that serves all together and computes nothing: streamed
   tokens a second, the server's CPU time for a token, and the latency of /health meanwhile.
2. The same at 10,000 tokens a second together, each step as long as a model's would be: whether the server
   keeps up, and how long a token is on its way from the engine to the client.
3. The naive and the cached engine with the reference model, the same requests driven in process and over
   HTTP, in turns inside one process: what HTTP adds to a token, and to the first one.

Every text is compared, character by character, with what the engine gave. Each run is a process of its own
and the order alternates; the clients are processes of their own on the same cores (stream_client.py). The
machine should be idle: the load average before the first run is in the conditions.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import subprocess
import sys
import threading
import time
from array import array
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from statistics import median
from typing import Any

from readme import put_table

from servelib.engine.naive import NaiveEngine
from servelib.engine.protocol import Engine, Model
from servelib.harness.conditions import machine, torch_in_use
from servelib.harness.stats import percentile, percentile_interval
from servelib.model.config import ModelConfig
from servelib.model.scripted import ScriptedModel
from servelib.request import Request, RequestState, SampledToken, SamplingParams, StepOutput

CLIENT = Path(__file__).with_name("stream_client.py")
BEGIN, END = "<!-- server overhead -->", "<!-- end of server overhead -->"
STREAMS, PACE = 64, 10_000
LIVE_REQUESTS, LIVE_PROMPT, LIVE_TOKENS, LIVE_PASSES = 4, 32, 48, 4
CASES = ("full", "paced", "naive", "cached")
now = time.perf_counter


def letter(stream: int, i: int) -> int:
    """Token ``i`` of a stream: printable, its neighbours and the other streams' all different."""
    return 32 + (31 * stream + 7 * i) % 95


class Together:
    """An engine that gives each of its requests one token a step.

    A step takes at least ``step_seconds``, asleep: a model's kernels leave the interpreter free, too.
    """

    def __init__(self, step_seconds: float) -> None:
        self.name = "scripted, all together"
        self.model = ScriptedModel(lambda state: letter(state.request.prompt_ids[0], len(state.output_ids)))
        self._live: dict[str, RequestState] = {}
        self._step_seconds = step_seconds
        self._due = 0.0

    @property
    def has_work(self) -> bool:
        """See ``Engine``."""
        return bool(self._live)

    def add_request(self, request: Request) -> None:
        """See ``Engine``."""
        config = self.model.config
        request.check_against(vocab_size=config.vocab_size, context=config.context)
        self._live[request.request_id] = RequestState(request, eos_id=config.eos_id)

    def step(self) -> list[StepOutput]:
        """See ``Engine``."""
        if self._step_seconds:
            self._due = max(self._due + self._step_seconds, now())
            time.sleep(max(0.0, self._due - now()))
        outputs = []
        for request_id, state in list(self._live.items()):
            token = self.model.sample(None, state)
            reason = state.append(token.token_id)
            if reason is not None:
                del self._live[request_id]
            outputs.append(StepOutput(request_id, (token,), reason))
        return outputs

    def abort(self, request_id: str) -> None:
        """See ``Engine``."""
        self._live.pop(request_id, None)


class Printable:
    """A model whose tokens are made printable once they are computed: then each token is one event."""

    def __init__(self, model: Model) -> None:
        self._model = model

    @property
    def config(self) -> ModelConfig:
        """See ``Model``."""
        return self._model.config

    def new_cache(self) -> Any:
        """See ``Model``."""
        return self._model.new_cache()

    def next_logits(self, ids: Any, cache: Any = None) -> Any:
        """See ``Model``."""
        return self._model.next_logits(ids, cache)

    def sample(self, logits: Any, state: RequestState) -> SampledToken:
        """See ``Model``."""
        return SampledToken(32 + self._model.sample(logits, state).token_id % 95)


class Watched:
    """An engine, and what each of its steps gave, and when.

    Kept as bare numbers: objects by the hundred thousand would make the garbage collector stall the server.
    """

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self.name = engine.name
        self._when, self._who, self._what = array("d"), array("i"), array("i")
        self._stream: dict[str, int] = {}

    @property
    def model(self) -> Model:
        """See ``Engine``."""
        return self._engine.model

    @property
    def has_work(self) -> bool:
        """See ``Engine``."""
        return self._engine.has_work

    def add_request(self, request: Request) -> None:
        """See ``Engine``."""
        self._engine.add_request(request)
        self._stream[request.request_id] = request.prompt_ids[0]

    def step(self) -> list[StepOutput]:
        """See ``Engine``."""
        outputs = self._engine.step()
        when = now()
        for output in outputs:
            stream = self._stream[output.request_id]
            for token in output.tokens:
                self._when.append(when)
                self._who.append(stream)
                self._what.append(token.token_id)
        return outputs

    def abort(self, request_id: str) -> None:
        """See ``Engine``."""
        self._engine.abort(request_id)

    def taken(self) -> dict[int, list[tuple[float, str]]]:
        """(when, character) of each token, by stream, since this was last asked."""
        found: dict[int, list[tuple[float, str]]] = {}
        for when, stream, token_id in zip(self._when, self._who, self._what, strict=True):
            found.setdefault(stream, []).append((when, chr(token_id)))
        self._when, self._who, self._what = array("d"), array("i"), array("i")
        return found


def while_served(engine: Engine, use: Callable[[str], None]) -> None:
    """Serve ``engine`` on this process's main thread, as ``servelib serve`` does, until ``use`` returns."""
    from servelib.server.run import serve

    failed: list[BaseException] = []

    def visit(url: str) -> None:
        try:
            use(url)
        except BaseException as error:
            failed.append(error)
        finally:
            os.kill(os.getpid(), signal.SIGTERM)

    serve(
        engine, port=0, model_id="m", on_ready=lambda url: threading.Thread(target=visit, args=(url,)).start()
    )
    if failed:
        raise failed[0]


def ask(url: str, prompts: list[list[int]], tokens: int, *, together: bool) -> list[dict[str, Any]]:
    """Stream ``tokens`` for each prompt, from a process of its own."""
    shared = {"model": "m", "stream": True, "max_tokens": tokens, "temperature": 0, "ignore_eos": True}
    job = {"url": url, "together": together, "bodies": [{**shared, "prompt": prompt} for prompt in prompts]}
    command = [sys.executable, str(CLIENT), "streams"]
    done = subprocess.run(command, input=json.dumps(job), stdout=subprocess.PIPE, text=True, check=True)
    found: list[dict[str, Any]] = json.loads(done.stdout)
    return found


def check(seen: list[dict[str, Any]], made: dict[int, list[tuple[float, str]]], tokens: int) -> None:
    """Every stream got every token, once, in order, and then its end."""
    assert len(seen) == len(made), f"{len(made)} streams made, {len(seen)} seen"
    for i, stream in enumerate(seen):
        text = "".join(text for _, text, _ in stream["events"])
        wanted = "".join(character for _, character in made[i])
        assert len(wanted) == tokens, f"stream {i}: {len(wanted)} tokens made"
        assert text == wanted, f"stream {i}: {text!r} came, {wanted!r} was made"
        reasons = [reason for _, _, reason in stream["events"]]
        assert reasons[-1] == "length", f"stream {i} ended with {reasons[-1]!r}"
        assert not any(reasons[:-1]), f"stream {i} ended more than once"


def ways(seen: list[dict[str, Any]], made: dict[int, list[tuple[float, str]]]) -> list[float]:
    """For every token, seconds from the end of its step to its bytes at the client."""
    found = []
    for i, stream in enumerate(seen):
        came = [when for when, text, _ in stream["events"] for _ in text]
        found += [a - b for a, (b, _) in zip(came, made[i], strict=True)]
    return sorted(found)


def cpu_clocks() -> tuple[float, float, float]:
    """CPU seconds of this process, of its event loop (the main thread) and of the engine's thread."""
    threads = [threading.main_thread()]
    threads += [thread for thread in threading.enumerate() if thread.name == "servelib-engine"]
    clocks = [time.clock_gettime(time.pthread_getcpuclockid(thread.ident or 0)) for thread in threads]
    return time.process_time(), clocks[0], clocks[1]


def scripted_run(tokens: int, step_seconds: float) -> dict[str, Any]:
    """One run of 64 streams, with /health asked meanwhile."""
    import torch  # noqa: F401  a real server holds it, and the garbage collector walks all of it

    engine = Watched(Together(step_seconds))
    prompts = [[i, 65] for i in range(STREAMS)]
    found: dict[str, Any] = {}

    def use(url: str) -> None:
        ask(url, prompts, 16, together=True)  # warm-up
        before = cpu_clocks()
        ask(url, prompts, 1, together=True)
        for_requests = cpu_clocks()[0] - before[0]
        engine.taken()
        command = [sys.executable, str(CLIENT), "health", url]
        with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as probe:
            assert probe.stdout is not None
            probe.stdout.readline()
            before = cpu_clocks()
            seen = ask(url, prompts, tokens, together=True)
            used = [b - a for a, b in zip(before, cpu_clocks(), strict=True)]
            asked: list[tuple[float, float]] = json.loads(probe.communicate()[0])
        made = engine.taken()
        check(seen, made, tokens)
        begin = min(stream["sent"] for stream in seen)
        end = max(stream["events"][-1][0] for stream in seen)
        n, way = tokens * STREAMS, ways(seen, made)
        found.update(
            tokens_per_second=n / (end - begin),
            slowest_first=max(stream["events"][0][0] for stream in seen) - begin,
            cpu_per_request=for_requests / STREAMS,
            tokens_per_event=n / sum(len(stream["events"]) for stream in seen),
            cpu_per_token=used[0] / n,
            loop_cpu_per_token=used[1] / n,
            engine_cpu_per_token=used[2] / n,
            way_p50=percentile(way, 0.5),
            way_p99=percentile(way, 0.99),
            health=[latency for due, latency in asked if begin <= due <= end],
        )

    while_served(engine, use)
    return found


def drive(engine: Watched, prompts: list[list[int]], tokens: int) -> list[float]:
    """The same requests in process, one after the other; when each was handed over."""
    began = []
    for prompt in prompts:
        began.append(now())
        sampling = SamplingParams(max_tokens=tokens, ignore_eos=True)
        engine.add_request(Request(f"direct-{prompt[0]}", tuple(prompt), sampling))
        while engine.has_work:
            engine.step()
    return began


def live_run(name: str) -> dict[str, Any]:
    """One run of an engine with the reference model: passes in process and over HTTP, in turns."""
    import torch

    from servelib.model.config import REFERENCE
    from servelib.model.tinygpt import TinyGPT

    torch.set_num_threads(1)
    engine = Watched(NaiveEngine(Printable(TinyGPT(REFERENCE)), use_cache=name == "cached"))
    prompts = [[i, *((17 * i + 5 * k) % 256 for k in range(LIVE_PROMPT - 1))] for i in range(LIVE_REQUESTS)]
    texts: set[tuple[str, ...]] = set()
    gaps: dict[str, list[float]] = {"direct": [], "http": []}
    firsts: dict[str, list[float]] = {"direct": [], "http": []}
    way: list[float] = []

    def note(kind: str, began: list[float], times: list[list[float]]) -> None:
        firsts[kind] += [each[0] - start for start, each in zip(began, times, strict=True)]
        gaps[kind] += [(each[-1] - each[0]) / (len(each) - 1) for each in times]

    def direct() -> None:
        began = drive(engine, prompts, LIVE_TOKENS)
        made = engine.taken()
        texts.add(tuple("".join(c for _, c in made[i]) for i in range(len(prompts))))
        note("direct", began, [[when for when, _ in made[i]] for i in range(len(prompts))])

    def served(url: str) -> None:
        ask(url, prompts[:1], 4, together=False)  # warm-up: each pass is a new server
        engine.taken()
        seen = ask(url, prompts, LIVE_TOKENS, together=False)
        made = engine.taken()
        check(seen, made, LIVE_TOKENS)
        texts.add(tuple("".join(text for _, text, _ in stream["events"]) for stream in seen))
        way.extend(ways(seen, made))
        came = [[when for when, text, _ in stream["events"] for _ in text] for stream in seen]
        note("http", [stream["sent"] for stream in seen], came)

    drive(engine, prompts[:1], 8)  # warm-up
    engine.taken()
    for turn in range(LIVE_PASSES):
        if turn % 2 == 0:
            direct()
        while_served(engine, served)
        if turn % 2 == 1:
            direct()
    assert len(texts) == 1, "over HTTP the texts are not those of the engine in process"
    found = {f"gap_{kind}": median(values) for kind, values in gaps.items()}
    found |= {f"first_{kind}": median(values) for kind, values in firsts.items()}
    found["gap_added"] = found["gap_http"] - found["gap_direct"]
    found["first_added"] = found["first_http"] - found["first_direct"]
    way.sort()
    return found | {"way_p50": percentile(way, 0.5), "way_p99": percentile(way, 0.99)}


def one(case: str, tokens: int) -> dict[str, Any]:
    """One run of one case, in this process."""
    if case == "full":
        return scripted_run(tokens, 0.0)
    if case == "paced":
        return scripted_run(tokens // 3, STREAMS / PACE)
    return live_run(case)


def in_a_process(case: str, tokens: int) -> dict[str, Any]:
    """One run of one case, in a fresh process."""
    command = [sys.executable, __file__, "--one", case, "--tokens", str(tokens)]
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode:
        raise SystemExit(f"{case} failed:\n{done.stderr[-4000:]}")
    found: dict[str, Any] = json.loads(done.stdout)
    return found


@dataclass
class Table:
    """Rows of name, value with interval, and bar; and the same for JSON."""

    lines: list[str] = field(
        default_factory=lambda: ["| | median | bar | held |", "| --- | ---: | --- | --- |"]
    )
    rows: list[dict[str, Any]] = field(default_factory=list)

    def add(
        self, name: str, values: list[float], *, q: float = 0.5, scale: float = 1.0, digits: int = 0,
        at_least: float | None = None, under: float | None = None,
    ) -> None:  # fmt: skip
        """``values`` of all runs (for ``q`` other than the median: of all samples of all runs)."""
        ordered = sorted(value * scale for value in values)
        value, interval = percentile(ordered, q), percentile_interval(ordered, q)
        shown = "-" if value is None else f"{value:,.{digits}f}"
        if interval is not None:
            shown += f" [{interval[0]:,.{digits}f}, {interval[1]:,.{digits}f}]"
        bar, held = "", None
        if value is not None and at_least is not None:
            bar, held = f"at least {at_least:,g}", value >= at_least
        if value is not None and under is not None:
            bar, held = f"under {under:,g}", value < under
        answer = "" if held is None else "yes" if held else "no"
        self.lines.append(f"| {name} | {shown} | {bar} | {answer} |")
        self.rows.append(
            {"name": name, "value": value, "interval": interval, "n": len(ordered), "held": held}
        )


def table_of(runs: dict[str, list[dict[str, Any]]]) -> Table:
    """Everything that was measured."""
    table = Table()

    def of(case: str, key: str) -> list[float]:
        return [run[key] for run in runs[case]]

    for case, title in (("full", "as fast as they come"), ("paced", f"{PACE:,} tokens/s asked")):
        if not runs[case]:
            continue
        head, full = f"{STREAMS} streams, {title}: ", case == "full"
        table.add(head + "tokens/s", of(case, "tokens_per_second"), at_least=8000 if full else None)
        table.add("tokens an event", of(case, "tokens_per_event"), digits=2)
        table.add("the server's CPU, µs a request of one token", of(case, "cpu_per_request"), scale=1e6)
        table.add("the last stream's first token, ms", of(case, "slowest_first"), scale=1e3, digits=1)
        table.add("the server's CPU, µs a token", of(case, "cpu_per_token"), scale=1e6, digits=1)
        table.add("of it on the event loop", of(case, "loop_cpu_per_token"), scale=1e6, digits=1)
        table.add("of it on the engine's thread", of(case, "engine_cpu_per_token"), scale=1e6, digits=1)
        if not full:  # as fast as they come, a token's way is the length of the queue it stands in
            table.add("a token's way to the client, p50, ms", of(case, "way_p50"), scale=1e3, digits=2)
            table.add("a token's way to the client, p99, ms", of(case, "way_p99"), scale=1e3, digits=2)
        health = [latency for run in runs[case] for latency in run["health"]]
        table.add("/health meanwhile, p50, ms", health, scale=1e3, digits=1)
        table.add("/health meanwhile, p99, ms", health, q=0.99, scale=1e3, digits=1, under=50)
    for case in ("naive", "cached"):
        if not runs[case]:
            continue
        for key, what in (("gap", "a token"), ("first", "the first token")):
            table.add(f"{case}, {what}, in process, ms", of(case, f"{key}_direct"), scale=1e3, digits=3)
            table.add(f"{case}, {what}, over HTTP, ms", of(case, f"{key}_http"), scale=1e3, digits=3)
            table.add(f"{case}, {what}, added by HTTP, µs", of(case, f"{key}_added"), scale=1e6)
        table.add(f"{case}, a token's way to the client, p50, µs", of(case, "way_p50"), scale=1e6)
        table.add(f"{case}, a token's way to the client, p99, µs", of(case, "way_p99"), scale=1e6)
    return table


def installed(package: str) -> str:
    """``package`` and its version, or that it is not there."""
    with suppress(PackageNotFoundError):
        return f"{package} {version(package)}"
    return f"no {package}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--runs", type=int, default=6, help="of each; 6 are the fewest with an interval (6)")
    parser.add_argument(
        "--tokens", type=int, default=1500, help="a stream as fast as it comes (default: 1500)"
    )
    parser.add_argument("--only", choices=CASES, action="append", help="leave the others out; repeatable")
    parser.add_argument("--json", type=Path, metavar="FILE", help="every run's numbers, and the table's")
    parser.add_argument("--readme", action="store_true", help="write the table into benchmarks/README.md")
    parser.add_argument("--one", choices=CASES, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.one:
        json.dump(one(options.one, options.tokens), sys.stdout)
        return

    load = os.getloadavg()[0]
    runs: dict[str, list[dict[str, Any]]] = {case: [] for case in CASES}
    wanted = [case for case in CASES if case in (options.only or CASES)]
    for run in range(options.runs):
        for case in wanted if run % 2 == 0 else reversed(wanted):
            runs[case].append(in_a_process(case, options.tokens))
            print(f"run {run + 1} of {options.runs}: {case}", file=sys.stderr)
    table = table_of(runs)
    moment = datetime.now(UTC).isoformat(timespec="seconds")
    conditions = (
        f"Conditions: {machine()}, Python {sys.version.split()[0]}, torch {torch_in_use()}, 1 thread, "
        f"{installed('uvicorn')}, {installed('httptools')}, {installed('uvloop')}, clients on the same "
        f"cores, {options.runs} runs, load average {load:.2f} before, measured {moment}."
    )
    text = "\n".join([*table.lines, "", conditions])
    print(text)
    if options.json:
        found = {"conditions": conditions, "table": table.rows, "runs": runs}
        options.json.write_text(json.dumps(found, indent=1) + "\n")
    if options.readme:
        put_table(BEGIN, END, text)


if __name__ == "__main__":
    main()
