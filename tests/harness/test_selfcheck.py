from __future__ import annotations

import asyncio

import pytest
from raw_server import CHUNKED, DONE, at_once, event, framed, raw_server, usage
from worlds import timed_engine, trace_of

from servelib.clock import VirtualClock, WallClock
from servelib.harness import drive as drive_module
from servelib.harness.drive import drive
from servelib.harness.http import drive_http
from servelib.harness.null import NullEngine, driver_cost
from servelib.harness.records import Outcome
from servelib.harness.selfcheck import LIMITS, DriverMeter, Limits, LoopWatch, check
from servelib.harness.target import Target


def test_inside_every_limit_a_run_is_valid():
    found = check("http", 0.5, [0.001] * 100, [0.002] * 100, LIMITS)
    assert found.valid
    assert (found.lag_p50, found.lag_p99) == pytest.approx((0.001, 0.001))
    assert (found.loop_lag_p50, found.loop_lag_p99) == pytest.approx((0.002, 0.002))


@pytest.mark.parametrize(
    ("share", "lags", "loop", "said"),
    [
        (0.5, [0.5], [0.0], "sends late by 500.0 ms at p99 (limit 10 ms)"),
        (0.5, [0.0], [0.5], "event loop late by 500.0 ms at p99 (limit 10 ms)"),
        (0.81, [0.0], [0.0], "harness busy 81% of the time (limit 80%)"),
        (0.11, [0.0], None, "harness busy 11% of the time (limit 10%)"),
        (0.0, [0.5], None, "sends late by 500.0 ms at p99 (limit 10 ms)"),
    ],
)
def test_past_a_limit_it_is_invalid_and_says_why(share, lags, loop, said):
    found = check("x", share, lags, loop, LIMITS)
    assert found.reasons == (said,)
    assert not found.valid


def test_nothing_sent_is_no_reason():
    found = check("http", 0.0, [], [], LIMITS)
    assert found.valid
    assert found.lag_p99 is None


def test_a_busy_engine_is_not_the_harness_s_fault():
    """In virtual time the driver costs nothing: all lateness of sends is the engine's, none of it is ours."""
    clock = VirtualClock()
    meters: list[DriverMeter] = []

    def meter() -> DriverMeter:
        meters.append(DriverMeter())
        return meters[-1]

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(drive_module, "DriverMeter", meter)
        run = drive(timed_engine(clock, lambda _: 0.5), trace_of((0.0, 4), (0.6, 4), (9.0, 2)), clock)
    (only,) = meters
    assert run.requests[1].sent - run.requests[1].scheduled == pytest.approx(0.4)  # due inside a step
    assert only.lags == pytest.approx([0.0, 0.0, 0.0])
    assert only.engine == pytest.approx(5.0)
    assert only.idle == pytest.approx(5.0)  # from 4.0 to 9.0
    assert only.verdict(10.0).cpu_share == pytest.approx(0.0)
    assert run.self_check is None  # nothing to check in virtual time


def test_the_driver_s_own_time_is_its_share():
    meter = DriverMeter(engine=6.0, idle=2.0)
    assert meter.verdict(10.0, Limits(driver_share=0.5)).cpu_share == pytest.approx(0.25)
    assert meter.verdict(10.0, Limits(driver_share=0.2)).reasons


def test_each_run_on_a_wall_clock_is_checked():
    run = drive(NullEngine(), at_once(4), WallClock())
    assert run.self_check is not None
    assert run.self_check.driver == "in process"
    assert run.self_check.lag_p99 is not None
    assert 0.0 <= run.self_check.cpu_share <= 1.0

    async def answer(number, writer):
        writer.write(CHUNKED + framed(event("abc"), usage(3), DONE) + b"0\r\n\r\n")

    with raw_server(answer) as raw:
        over = drive_http(Target(raw.url, "m"), at_once(4))
    assert over.self_check is not None
    assert over.self_check.driver == "http"


def test_the_null_engine_gives_what_is_asked():
    run = drive(NullEngine(), at_once(5, tokens=7), WallClock())
    assert [(r.outcome, r.output_tokens) for r in run.requests] == [(Outcome.OK, 7)] * 5
    engine = NullEngine()
    engine.abort("unknown")
    assert not engine.has_work
    assert driver_cost(2, 3) > 0.0


def test_the_loop_watch_sees_a_loop_that_was_held():
    clock = VirtualClock()
    watch = LoopWatch(clock)

    async def play() -> None:
        asleep: list[asyncio.Future[None]] = []
        real = asyncio.sleep

        async def sleep(seconds: float) -> None:
            asleep.append(asyncio.get_running_loop().create_future())
            await asleep[-1]

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr("servelib.harness.selfcheck.asyncio.sleep", sleep)
            task = asyncio.ensure_future(watch.run())
            await real(0)
            clock.advance(watch.PERIOD + 0.25)  # somebody held the loop
            asleep[0].set_result(None)
            await real(0)
            await real(0)
            task.cancel()

    asyncio.run(play())
    assert watch.lags == pytest.approx([0.25])
