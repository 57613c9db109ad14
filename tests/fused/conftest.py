from __future__ import annotations

import shutil
from collections.abc import Iterator

import pytest
import torch

if not any(shutil.which(name) for name in ("cc", "gcc", "clang")):
    collect_ignore_glob = ["test_*.py"]  # as on Windows: there is nothing to compile them with


@pytest.fixture(autouse=True)
def one_thread() -> Iterator[None]:
    """Small tensors on one thread: two threads on a busy machine wait for each other, a hundredfold."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)
