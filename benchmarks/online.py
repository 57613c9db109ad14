"""Our server beside vLLM's CPU build, online: the reference workload over HTTP at several arrival rates.

    python benchmarks/online.py
    python benchmarks/online.py --rates 4,16 --seconds 10 --runs 2 --no-capacity      a short look
    python benchmarks/online.py --json online.json --readme

Both servers have the same weights and are driven by the same harness, one after the other on the same trace;
the one that waits is stopped (SIGSTOP), and every run takes them in the opposite order. First every rate:
TTFT, gaps, goodput. Then the capacity of each: the largest rate at which 90 % of requests meet the objective.
vLLM gets an environment of its own (environments.py). The machine should be idle.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import socket
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import asdict
from datetime import UTC, datetime
from pathlib import Path

from environments import DEFAULT_FOLDER, NoPeerError, environment, say
from frozen import Frozen
from readme import put_table

from servelib.harness.capacity import Capacity, find_capacity
from servelib.harness.conditions import machine
from servelib.harness.metrics import SLO
from servelib.harness.records import RunRecord
from servelib.harness.remote import Remote
from servelib.harness.stats import Estimate
from servelib.harness.summary import summarise
from servelib.harness.target import Target
from servelib.harness.trace import Workload
from servelib.model.config import REFERENCE
from servelib.model.tinygpt import TinyGPT
from servelib.text.pretrained import save_reference_tokenizer

OURS, THEIRS = "servelib", "vllm"
Records = dict[float, dict[str, list[RunRecord]]]
READY_SECONDS = 600.0
BEGIN, END = "<!-- online -->", "<!-- end of online -->"


class Server:
    """A server's process and how to aim at it."""

    def __init__(self, name: str, command: list[str], port: int, env: dict[str, str], log: Path) -> None:
        self.name, self._url = name, f"http://127.0.0.1:{port}"
        self._held = Frozen(name, command, log, env, stdout=subprocess.DEVNULL)
        with self._held.running():
            until = time.monotonic() + READY_SECONDS
            while not self._ready():
                if self._held.process.poll() is not None or time.monotonic() > until:
                    raise self._held.fail("did not start")
                time.sleep(0.5)
            with urllib.request.urlopen(f"{self._url}/v1/models") as answer:
                self._target = Target(self._url, json.load(answer)["data"][0]["id"])
            Remote(self._target).play(Workload().warmup(32))

    def play(self, workload: Workload, rate: float, run: int) -> RunRecord:
        """One run, the other server standing still."""
        with self._held.running():
            return Remote(self._target).play(workload.trace(rate, run))

    def end(self) -> None:
        """Stop it."""
        self._held.end()

    def _ready(self) -> bool:
        try:
            with urllib.request.urlopen(f"{self._url}/health", timeout=5) as answer:
                return answer.status == 200
        except OSError:
            return False


@contextmanager
def servers(options: argparse.Namespace) -> Iterator[list[Server]]:
    """Both, up and warm, for the length of a ``with`` block."""
    python = environment(THEIRS, options.envs, options.pip_args.split())
    ports = [free_port(), free_port()]
    cores = ",".join(map(str, sorted(os.sched_getaffinity(0))[: options.threads]))
    with tempfile.TemporaryDirectory() as folder, ExitStack() as started:
        model = Path(folder, "model")
        TinyGPT(REFERENCE).save_pretrained(model)
        save_reference_tokenizer(model)
        ours = [
            str(Path(sys.executable).with_name("servelib")), "serve", "--engine", options.engine,
            "--port", str(ports[0]), "--threads", str(options.our_threads), "--kernels", options.kernels,
        ]  # fmt: skip
        theirs = [  # what `vllm serve` runs; the command itself looks for a package of another name
            str(python), "-m", "vllm.entrypoints.openai.api_server", "--model", str(model),
            "--port", str(ports[1]), "--dtype", "float32", "--max-num-seqs", "64", "--max-model-len", "2048",
            "--no-enable-prefix-caching", "--served-model-name", "reference",
        ]  # fmt: skip
        env = {
            "VLLM_CPU_KVCACHE_SPACE": "1",
            "VLLM_CPU_OMP_THREADS_BIND": cores,
            "VLLM_LOGGING_LEVEL": "ERROR",
            "HF_HUB_OFFLINE": "1",
            "VLLM_NO_USAGE_STATS": "1",
        }
        up = []
        for name, command, port, variables in ((OURS, ours, ports[0], {}), (THEIRS, theirs, ports[1], env)):
            say(f"{name}: starting")
            up.append(Server(name, command, port, variables, Path(folder, f"{name}.log")))
            started.callback(up[-1].end)
        yield up


def workload(rate: float, seconds: float) -> Workload:
    """As many requests as arrive in ``seconds``, and never too few for a percentile."""
    return Workload(requests=max(24, round(rate * seconds)))


def measure(up: list[Server], options: argparse.Namespace, records: Records) -> None:
    """Every rate, ``runs`` times each; the order of servers and of rates turns round each run."""
    for run in range(options.runs):
        for rate in options.rates if run % 2 == 0 else reversed(options.rates):
            for server in up if run % 2 == 0 else reversed(up):
                record = server.play(workload(rate, options.seconds), rate, run)
                records[rate][server.name].append(record)
                share = summarise([record]).goodput_fraction.value
                say(f"run {run + 1} of {options.runs}: {server.name} at {rate:g}/s, {share:.0%} in time")


def capacity(server: Server, options: argparse.Namespace) -> Capacity:
    """By bisection, each rate ``runs`` times."""

    def attain(rate: float) -> Estimate:
        asked = workload(rate, options.seconds)
        share = summarise([server.play(asked, rate, run) for run in range(options.runs)]).goodput_fraction
        say(f"{server.name} at {rate:.3g}/s: {share.value:.1%} in time")
        return share

    return find_capacity(attain, start=options.start, tolerance=0.05, max_evaluations=options.evaluations)


def main() -> int:
    options = arguments()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # so that what was started ends, too
    load = os.getloadavg()[0]
    found: dict[str, list[Capacity]] = {OURS: [], THEIRS: []}
    records: Records = {rate: {OURS: [], THEIRS: []} for rate in options.rates}
    whole = True
    try:
        with servers(options) as up:
            measure(up, options, records)
            for turn in range(0 if options.no_capacity else 2):
                for server in up if turn % 2 == 0 else reversed(up):
                    found[server.name].append(capacity(server, options))
    except NoPeerError as error:
        print(error, file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        say("stopped: what was measured until now follows, and README.md stays as it is")
        whole = False
    records = {rate: seen for rate, seen in records.items() if all(seen.values())}
    slo = SLO()
    lines = [
        "| rate/s | server | TTFT p50, ms | p99 | gap p50, ms | p99 | goodput/s | in time | failed |",
        "| ---: | --- | ---: | ---: | ---: | ---: | ---: | ---: | ---: |",
    ]
    for rate, seen in records.items():
        for name, runs in seen.items():
            s = summarise(runs, slo)
            times = [cell(e, 1e3, 1) for e in (s.ttft_p50, s.ttft_p99, s.gap_p50, s.gap_p99)]
            goodput = [cell(s.goodput_per_second, 1, 1), cell(s.goodput_fraction, 100, 1)]
            lines.append(
                f"| {rate:g} | {name} | {' | '.join([*times, *goodput])} | {s.failed} of {s.offered} |"
            )
    if all(found.values()):
        lines += ["", "| server | capacity, requests/s, each search | |", "| --- | ---: | --- |"]
        for name, searches in found.items():
            cells = ", ".join(cell(search.rate, 1, 1) for search in searches)
            notes = "; ".join(sorted({search.rate.note for search in searches if search.rate.note}))
            lines.append(f"| {name} | {cells} | {notes} |")
    lines += [
        "",
        f"In time: TTFT within {slo.ttft:g} s and every gap within {slo.gap:g} s; in percent. "
        f"Conditions: {REFERENCE.label}, float32, {machine()}, client and server on the same cores, "
        f"servelib ({options.engine}, {options.kernels} kernels) with threads: {options.our_threads}, "
        f"vLLM with {options.threads}, "
        f"reference workload for {options.seconds:g} s a run, {options.runs} runs in alternating order, "
        f"load average {load:.2f} before, measured {datetime.now(UTC).isoformat(timespec='seconds')}",
    ]
    table = "\n".join(lines)
    print(table)
    if options.json:
        content = {
            "conditions": lines[-1],
            "rates": {str(rate): {name: asdict(summarise(runs, slo)) for name, runs in seen.items()}
                      for rate, seen in records.items()},
            "capacity": {name: [asdict(search) for search in searches] for name, searches in found.items()},
        }  # fmt: skip
        options.json.write_text(json.dumps(content, indent=1))
    if options.readme and whole:
        put_table(BEGIN, END, table)
    return 0


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    add = parser.add_argument
    add(
        "--envs",
        type=Path,
        default=DEFAULT_FOLDER,
        metavar="DIR",
        help="environments are kept here (default: %(default)s)",
    )
    add("--pip-args", default="", metavar="ARGS", help="more arguments for pip, in one string")
    add("--engine", default="continuous", help="ours (default: %(default)s)")
    add("--kernels", default="fused", help="ours: fused (the default), or pytorch")
    add(
        "--rates",
        type=rates,
        default=[4.0, 16.0, 32.0, 48.0, 64.0],
        metavar="LIST",
        help="(default: 4,16,32,48,64)",
    )
    add("--seconds", type=float, default=15.0, help="of arrivals in a run (default: 15)")
    add("--runs", type=int, default=3, help="of each (default: 3)")
    add("--threads", type=int, default=2, help="vLLM's (default: 2)")
    add("--our-threads", type=int, default=1, help="servelib's (default: 1, as servelib serve)")
    add("--no-capacity", action="store_true", help="rates only")
    add("--start", type=float, default=32.0, help="first rate of the capacity search (default: 32)")
    add("--evaluations", type=int, default=10, help="rates that a capacity search may try (default: 10)")
    add("--json", type=Path, metavar="FILE", help="every summary")
    add("--readme", action="store_true", help="write the table into benchmarks/README.md")
    return parser.parse_args()


def rates(text: str) -> list[float]:
    return [float(part) for part in text.split(",")]


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        return int(listener.getsockname()[1])


def cell(estimate: Estimate, factor: float, digits: int) -> str:
    """A value and its interval over runs, as far as they are known."""
    if estimate.value is None:
        return "-"
    ends = [end for end in (estimate.low, estimate.high) if end is not None]
    shown = " [" + ", ".join(f"{factor * end:,.{digits}f}" for end in ends) + "]" if len(ends) == 2 else ""
    return f"{factor * estimate.value:,.{digits}f}{shown}"


if __name__ == "__main__":
    sys.exit(main())
