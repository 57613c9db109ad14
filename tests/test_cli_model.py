"""``--model``, ``--device`` and ``--dtype``: which model a command runs."""

from __future__ import annotations

import argparse
from pathlib import Path

import pytest
import torch

from servelib.commands.model import add_kernels, add_model, add_threads, chosen_model, chosen_text
from servelib.commands.options import Parser, UsageError
from servelib.model.config import REFERENCE
from servelib.model.tinygpt import TinyGPT
from servelib.text.pretrained import save_reference_tokenizer

PLAIN = Path(__file__).parent / "model" / "data" / "plain"


@pytest.fixture(autouse=True)
def threads_as_they_were():
    before = torch.get_num_threads()
    yield
    torch.set_num_threads(before)


def typed(*line: str) -> argparse.Namespace:
    parser = Parser(prog="x")
    add_threads(parser)
    add_kernels(parser)
    add_model(parser)
    return parser.parse_args(line)


def test_nothing_said_is_the_reference_model_and_its_text():
    assert chosen_model(typed()).config is REFERENCE
    assert chosen_text(typed()) == (None, None)
    assert torch.get_num_threads() == 1


def test_a_folder_is_loaded_in_the_numbers_that_are_asked_for(tmp_path: Path):
    model = chosen_model(typed("--model", str(PLAIN), "--dtype", "bfloat16", "--threads", "2"))
    assert isinstance(model, TinyGPT)
    assert model.embedding.dtype is torch.bfloat16
    assert (model.config.label, torch.get_num_threads()) == ("plain", 2)
    TinyGPT.from_pretrained(PLAIN).save_pretrained(tmp_path)
    save_reference_tokenizer(tmp_path)
    tokenizer, template = chosen_text(typed("--model", str(tmp_path)))
    assert tokenizer is not None
    assert tokenizer.encode("hi") == (104, 105)
    assert template is None


def test_the_reference_model_too_goes_where_it_is_told():
    model = chosen_model(typed("--dtype", "bfloat16"))
    assert isinstance(model, TinyGPT)
    assert model.output.dtype is torch.bfloat16


@pytest.mark.parametrize(
    ("line", "said"),
    [
        (["--model", "/no/such"], "no such folder"),
        (["--device", "cuda:77"], "device: got 'cuda:77', cannot be used here"),
        (["--model", str(PLAIN), "--device", "nothing"], "device: got 'nothing'"),
    ],
)
def test_what_cannot_be_is_one_line(line: list[str], said: str):
    with pytest.raises(UsageError, match=said):
        chosen_model(typed(*line))


def test_a_checkpoint_without_a_tokenizer_is_said():
    with pytest.raises(UsageError, match=r"cannot read .*tokenizer\.json"):
        chosen_text(typed("--model", str(PLAIN)))
