from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from servelib import clock as clock_module
from servelib.clock import VirtualClock, WallClock

seconds = st.floats(0, 1e6)


def test_virtual_time_stands_still_until_told():
    clock = VirtualClock(start=2.0)
    assert clock.is_virtual
    assert clock.now() == clock.now() == 2.0


@given(st.lists(st.tuples(st.booleans(), seconds), max_size=30))
def test_virtual_time_is_the_exact_sum_of_its_moves_and_never_runs_back(moves: list[tuple[bool, float]]):
    clock, expected = VirtualClock(), 0.0
    for advance, amount in moves:
        if advance:
            clock.advance(amount)
            expected += amount
        else:
            clock.sleep_until(amount)
            expected = max(expected, amount)
        assert clock.now() == expected


@pytest.mark.parametrize("cost", [-1e-9, math.nan, -math.inf])
def test_virtual_time_refuses_to_run_back(cost: float):
    clock = VirtualClock(start=1.0)
    with pytest.raises(ValueError, match="must be >= 0"):
        clock.advance(cost)
    assert clock.now() == 1.0


def test_a_zero_cost_is_a_cost():
    clock = VirtualClock()
    clock.advance(0.0)
    assert clock.now() == 0.0


class FakeTime:
    """A machine whose sleep wakes early: half of what was asked for, and notes each call."""

    def __init__(self) -> None:
        self.at, self.slept = 10.0, []

    def perf_counter(self) -> float:
        return self.at

    def sleep(self, duration: float) -> None:
        self.slept.append(duration)
        self.at += duration / 2 if duration > 1e-6 else duration


def test_the_wall_clock_never_wakes_early(monkeypatch: pytest.MonkeyPatch):
    fake = FakeTime()
    monkeypatch.setattr(clock_module, "time", fake)
    clock = WallClock()
    assert not clock.is_virtual
    clock.sleep_until(11.0)
    assert clock.now() >= 11.0
    assert len(fake.slept) > 1


def test_the_wall_clock_does_not_sleep_for_what_has_passed(monkeypatch: pytest.MonkeyPatch):
    fake = FakeTime()
    monkeypatch.setattr(clock_module, "time", fake)
    WallClock().sleep_until(9.0)
    assert fake.slept == []


def test_the_wall_clock_is_monotonic():
    clock = WallClock()
    readings = [clock.now() for _ in range(1000)]
    assert readings == sorted(readings)
