"""What the harness itself costs, side by side with ``vllm bench serve`` against the same scripted server.

    python benchmarks/harness_overhead.py
    python benchmarks/harness_overhead.py --vllm ~/vllm-env/bin/vllm
    python benchmarks/harness_overhead.py --readme          also writes the table of benchmarks/README.md

1. In process: microseconds a token event, with an engine that does nothing.
2. Over HTTP, 64 streams as fast as they come: streamed tokens a second, server and client on this machine.
3. Over HTTP, 64 streams at 26,000 tokens a second together: how much later the client stamps a token than
   the server wrote it, both on the machine's one monotonic clock.

``vllm bench serve`` lives in an environment of its own (benchmarks/README.md), named by --vllm or the
variable VLLM_BIN; without it its column holds dashes. Runs alternate. The machine should be idle: the load
average before the first run is in the table's conditions.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import subprocess
import sys
import tempfile
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import partial
from itertools import accumulate
from pathlib import Path
from statistics import median
from typing import NoReturn

from readme import put_table

from servelib.harness.conditions import machine
from servelib.harness.http import drive_http
from servelib.harness.null import driver_cost
from servelib.harness.stats import percentile
from servelib.harness.target import Target
from servelib.harness.trace import Trace, TraceRequest

HERE = Path(__file__).parent
STREAMS, RATE = 64, 26_000
BEGIN, END = "<!-- table -->", "<!-- end of table -->"


@dataclass(frozen=True)
class Seen:
    """One client's run: tokens a second, and how late its stamps were, in seconds and rising order."""

    tokens_per_second: float
    late: list[float]


@contextmanager
def scripted(rate: float | None) -> Iterator[str]:
    """The server, in a process of its own."""
    command = [sys.executable, str(HERE / "scripted_server.py")]
    command += [] if rate is None else ["--rate", str(rate)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as server:
        try:
            assert server.stdout is not None
            yield server.stdout.readline().strip()
        finally:
            server.terminate()


def prompt(i: int) -> str:
    """One stream's own, so that both sides know which is which."""
    return f"{i:04d} tell me about queues"


def lateness(url: str, stamps: dict[str, list[float]]) -> list[float]:
    """Stamp minus writing for every token, matched by prompt and position."""
    with urllib.request.urlopen(f"{url}/written") as answer:
        written = json.load(answer)
    for name, times in stamps.items():
        assert len(times) == len(written[name]), f"{name}: {len(times)} stamps, {len(written[name])} chunks"
    return sorted(s - w for name, times in stamps.items() for s, w in zip(times, written[name], strict=True))


def seen(url: str, stamps: dict[str, list[float]]) -> Seen:
    """Tokens a second from the first stamp to the last, and the lateness."""
    every = sorted(time for times in stamps.values() for time in times)
    return Seen(len(every) / (every[-1] - every[0]), lateness(url, stamps))


def ours(url: str, tokens: int) -> Seen:
    """servelib's driver."""
    asked = [TraceRequest(f"r{i}", 0.0, tuple(prompt(i).encode()), tokens) for i in range(STREAMS)]
    trace = Trace(tuple(asked), "at once", "25", str(tokens), seed=0)
    run = drive_http(Target(url, "scripted", prompt_ids=False), trace)
    assert all(record.ok for record in run.requests), run.requests[0].error
    return seen(
        url,
        {
            prompt(i): [run.began + time for time, n in record.events for _ in range(n)]
            for i, record in enumerate(run.requests)
        },
    )


def version(vllm: str) -> str:
    """Of the peer. Its package says: ``vllm --version`` itself wants an accelerator."""
    found = shutil.which(vllm)
    if found is None:
        no_peer(f"no command {vllm!r}")
    python = Path(found).resolve().with_name("python")
    said = "from importlib.metadata import version; print(version('vllm'))"
    try:
        return subprocess.run([python, "-c", said], capture_output=True, text=True, check=True).stdout.strip()
    except (OSError, subprocess.CalledProcessError):
        no_peer(f"{found} is not in an environment that holds vllm")


def no_peer(why: str) -> NoReturn:
    """The peer was asked for and cannot be had."""
    print(
        f"{why}\nbenchmarks/README.md says how to install it; without --vllm it is left out", file=sys.stderr
    )
    raise SystemExit(2)


def theirs(vllm: str, url: str, tokens: int) -> Seen:
    """``vllm bench serve``. It needs no tokenizer this way; max_tokens is put into the body."""
    with tempfile.TemporaryDirectory() as folder:
        asked = Path(folder, "prompts.jsonl")
        asked.write_text("".join(json.dumps({"prompt": prompt(i)}) + "\n" for i in range(STREAMS)))
        command = [
            vllm, "bench", "serve", "--backend", "openai", "--base-url", url, "--model", "scripted",
            "--skip-tokenizer-init", "--dataset-name", "custom", "--dataset-path", str(asked),
            "--skip-chat-template", "--disable-shuffle", "--num-prompts", str(STREAMS),
            "--request-rate", "inf", "--extra-body", json.dumps({"max_tokens": tokens}),
            "--ready-check-timeout-sec", "0", "--disable-tqdm", "--save-result", "--save-detailed",
            "--result-dir", folder, "--result-filename", "result.json",
        ]  # fmt: skip
        done = subprocess.run(command, capture_output=True, text=True)
        result = Path(folder, "result.json")
        if done.returncode or not result.exists():
            raise SystemExit(f"vllm bench serve failed:\n{done.stdout[-2000:]}\n{done.stderr[-2000:]}")
        found = json.loads(result.read_text())
    if found["failed"]:
        raise SystemExit(f"vllm bench serve: {found['failed']} failed, {next(filter(None, found['errors']))}")
    each = zip(found["start_times"], found["ttfts"], found["itls"], strict=True)
    return seen(
        url,
        {prompt(i): list(accumulate([start + first, *gaps])) for i, (start, first, gaps) in enumerate(each)},
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--vllm", default=os.environ.get("VLLM_BIN"), help="the vllm command (or VLLM_BIN)")
    parser.add_argument("--runs", type=int, default=3, help="of each, alternating (default: 3)")
    parser.add_argument("--tokens", type=int, default=2000, help="a stream when saturated (default: 2000)")
    parser.add_argument("--seconds", type=float, default=3.0, help="of the paced run (default: 3)")
    parser.add_argument("--readme", action="store_true", help="write the table into benchmarks/README.md")
    options = parser.parse_args()

    load = os.getloadavg()[0]
    clients: dict[str, Callable[[str, int], Seen]] = {"servelib": ours}
    peer = "vllm bench serve not installed here, so not measured"
    if options.vllm:
        peer = f"vllm {version(options.vllm)}"
        clients["vllm bench serve"] = partial(theirs, options.vllm)
    in_process = [1e6 * driver_cost() for _ in range(options.runs)]
    full: dict[str, list[Seen]] = {name: [] for name in clients}
    paced: dict[str, list[Seen]] = {name: [] for name in clients}
    for run in range(options.runs):
        order = list(clients) if run % 2 == 0 else list(reversed(clients))
        for name in order:
            with scripted(None) as url:
                full[name].append(clients[name](url, options.tokens))
            with scripted(RATE / STREAMS) as url:
                paced[name].append(clients[name](url, round(options.seconds * RATE / STREAMS)))

    lines = [
        "| | " + " | ".join([*clients, *([] if options.vllm else ["vllm bench serve"]), "bar"]) + " |",
        "| --- | " + " | ".join(["---:"] * 2) + " | --- |",
        row("in process, µs a token event", [spread(in_process, 2), "-"], "at most 20"),
        row(
            f"HTTP, {STREAMS} streams, tokens/s, saturated",
            cells(full, lambda s: s.tokens_per_second, 0),
            "at least the peer's",
        ),
    ]
    for q in (0.5, 0.99):
        lines.append(
            row(
                f"HTTP, {RATE:,} tokens/s asked, stamp late by, p{q * 100:g}, ms",
                cells(paced, partial(late_ms, q), 2),
                "under 5" if q > 0.5 else "",
            )
        )
    lines.append(
        row("the same, tokens/s reached", cells(paced, lambda s: s.tokens_per_second, 0), f"{RATE:,}")
    )
    now = datetime.now(UTC).isoformat(timespec="seconds")
    lines += [
        "",
        f"Median of {options.runs} runs, alternating; lowest and highest in brackets. "
        f"Conditions: {machine()}, Python {sys.version.split()[0]}, {peer}, "
        f"client and server on the same cores, load average {load:.2f} before, measured {now}.",
    ]
    table = "\n".join(lines)
    print(table)
    if options.readme:
        put_table(BEGIN, END, table)


def cells(found: dict[str, list[Seen]], of: Callable[[Seen], float], digits: int) -> list[str]:
    """One cell a client; a dash for a peer that is not here."""
    shown = [spread([of(seen) for seen in runs], digits) for runs in found.values()]
    return shown + ["-"] * (2 - len(shown))


def spread(values: list[float], digits: int) -> str:
    """Median, lowest and highest."""
    return f"{median(values):,.{digits}f} [{min(values):,.{digits}f}, {max(values):,.{digits}f}]"


def late_ms(q: float, run: Seen) -> float:
    """How late stamps were, at one quantile, in milliseconds."""
    return 1e3 * (percentile(run.late, q) or 0.0)


def row(name: str, shown: list[str], bar: str) -> str:
    """One line of the table."""
    return f"| {name} | {' | '.join(shown)} | {bar} |"


if __name__ == "__main__":
    main()
