"""Checkpoints beside transformers: what it writes we read, what we write it reads, and the logits agree.

    python benchmarks/checkpoints.py
    python benchmarks/checkpoints.py --write tests/model/data     also renews the fixtures of the tests

transformers lives in an environment of its own, which the script makes. Exit code 1 when any logit of a
small random model in float32 differs by more than 1e-4.
"""

from __future__ import annotations

import argparse
import shutil
import subprocess
import sys
import tempfile
from dataclasses import replace
from pathlib import Path

import torch
from environments import DEFAULT_FOLDER, PEERS, NoPeerError, environment
from safetensors.torch import load_file

from servelib.model.config import REFERENCE, ModelConfig, RopeScaling
from servelib.model.tinygpt import TinyGPT

MOST = 1e-4
SMALL = replace(REFERENCE, vocab_size=50, width=24, layers=2, heads=6, head_size=4, ffn_size=20, context=64,
                bos_id=1, eos_id=2)  # fmt: skip
OURS: dict[str, ModelConfig] = {
    "reference": REFERENCE,
    "small": SMALL,
    "tied": replace(SMALL, tied_output=True, eos_id=(2, 3)),
    "head size": replace(SMALL, heads=6, kv_heads=6, head_size=10),
    "llama 3 rope": replace(SMALL, rope_theta=500.0, rope_scaling=RopeScaling(8.0, 1.0, 4.0, 16)),
    "bfloat16": replace(SMALL, dtype="bfloat16"),
}


def difference(folder: Path) -> float:
    """The largest between our logits in float32 and what transformers has written beside the weights."""
    expected = load_file(folder / "expected.safetensors")
    logits, _ = TinyGPT.from_pretrained(folder, dtype="float32")(expected["ids"].long())
    return (logits - expected["logits"]).abs().max().item()


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument(
        "--envs", type=Path, default=DEFAULT_FOLDER, metavar="DIR", help="where the environment is kept"
    )
    parser.add_argument("--pip-args", default="", help="more arguments for pip, in one string")
    parser.add_argument("--write", type=Path, metavar="DIR", help="put what transformers wrote here")
    options = parser.parse_args()
    try:
        python = environment("transformers", options.envs, options.pip_args.split())
    except NoPeerError as error:
        print(error, file=sys.stderr)
        return 2
    worst = 0.0
    print("| written by | model | largest difference of a logit |\n| --- | --- | ---: |")
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        theirs = folder / "theirs"
        subprocess.run([python, PEERS / "logits.py", "make", theirs], check=True, stderr=subprocess.DEVNULL)
        for made in sorted(theirs.iterdir()):
            worst = max(worst, found := difference(made))
            print(f"| transformers | {made.name} | {found:.1e} |")
        for label, config in OURS.items():
            made = folder / label
            TinyGPT(config).save_pretrained(made)
            subprocess.run([python, PEERS / "logits.py", "read", made], check=True, stderr=subprocess.DEVNULL)
            worst = max(worst, found := difference(made))
            print(f"| servelib | {label} | {found:.1e} |")
        if options.write:
            shutil.copytree(theirs, options.write, dirs_exist_ok=True)
    print(f"\nWorst {worst:.1e}, must be at most {MOST:.0e}; float32, torch {torch.__version__}.")
    return int(worst > MOST)


if __name__ == "__main__":
    sys.exit(main())
