from __future__ import annotations

import gc

import pytest

from servelib.harness.pauses import no_full_collections


class Knot:
    """A cycle: only the collector can free it."""

    def __init__(self) -> None:
        self.me = self


def full_collections() -> int:
    return gc.get_stats()[2]["collections"]


def test_no_full_collection_inside_and_the_setting_comes_back():
    before = gc.get_threshold()
    with no_full_collections():
        seen = full_collections()
        kept = [(i, Knot()) for i in range(200_000)]  # enough for several, otherwise
        assert full_collections() == seen
    assert len(kept) == 200_000
    assert gc.get_threshold() == before


def test_the_setting_comes_back_after_a_failure():
    before = gc.get_threshold()
    with pytest.raises(RuntimeError), no_full_collections():
        raise RuntimeError("the run broke")
    assert gc.get_threshold() == before


def test_without_it_the_same_work_is_collected_in_full():
    gc.collect()
    seen = full_collections()
    kept = [(i, Knot()) for i in range(200_000)]
    assert full_collections() > seen
    assert kept
