"""The engine's thread, without HTTP."""

import asyncio
import threading

import pytest

from servelib.engine.naive import NaiveEngine
from servelib.errors import InvalidRequestError
from servelib.model.scripted import ScriptedModel
from servelib.request import FinishReason, Request, SamplingParams, StepOutput
from servelib.server.loop import EngineLoop, EngineStoppedError, Mailbox


class BrokenEngine(NaiveEngine):
    """Its ``step`` raises once it has given ``good`` tokens."""

    good = 2

    def step(self):
        if self.good == 0:
            raise RuntimeError("secret detail")
        self.good -= 1
        return super().step()


def request(name, tokens=3, prompt=(1,)):
    return Request(name, prompt, SamplingParams(max_tokens=tokens))


async def read(mailbox):
    return [output async for outputs in mailbox for output in outputs]


def run(engine, scenario):
    """Run a scenario against a started loop; afterwards nothing may be left."""

    async def body():
        loop = EngineLoop(engine)
        loop.start()
        try:
            return await asyncio.wait_for(scenario(loop), 20)
        finally:
            loop.stop(timeout=20)

    before = threading.active_count()
    result = asyncio.run(body())
    assert threading.active_count() == before
    return result


def test_each_caller_gets_its_own_outputs_in_order():
    async def scenario(loop):
        return await asyncio.gather(*(read(loop.submit(request(f"r{i}"))) for i in range(5)))

    model = ScriptedModel(lambda state: len(state.output_ids) + 10)
    for index, outputs in enumerate(run(NaiveEngine(model), scenario)):
        assert [output.request_id for output in outputs] == [f"r{index}"] * 3
        assert [output.token_ids for output in outputs] == [(10,), (11,), (12,)]
        assert outputs[-1].finish_reason is FinishReason.LENGTH


def test_a_refusal_of_the_engine_reaches_its_caller_alone():
    async def scenario(loop):
        bad = loop.submit(request("bad", prompt=(999,)))
        good = loop.submit(request("good"))
        with pytest.raises(InvalidRequestError, match="prompt"):
            await read(bad)
        assert len(await read(good)) == 3

    run(NaiveEngine(ScriptedModel([7])), scenario)


def test_one_request_that_fails_leaves_the_others():
    def script(state):
        if state.request.request_id == "bad":
            raise RuntimeError("boom")
        return 7

    async def scenario(loop):
        bad, good = loop.submit(request("bad")), loop.submit(request("good"))
        assert (await read(bad))[-1].finish_reason is FinishReason.ERROR
        assert len(await read(good)) == 3
        assert loop.failure is None

    run(NaiveEngine(ScriptedModel(script)), scenario)


def test_a_dead_engine_fails_all_in_flight_and_refuses_the_next():
    async def scenario(loop):
        boxes = [loop.submit(request(f"r{i}")) for i in range(3)]
        for ended in await asyncio.gather(*map(read, boxes), return_exceptions=True):
            assert isinstance(ended, EngineStoppedError)
            assert "died" in str(ended)
            assert "secret" not in str(ended)
        assert "died" in loop.failure
        with pytest.raises(EngineStoppedError, match="died"):
            loop.submit(request("late"))

    engine = BrokenEngine(ScriptedModel([7]))
    run(engine, scenario)
    assert not engine.has_work


def test_an_engine_that_exits_is_dead_too_and_not_a_shut_down():
    class Exits(NaiveEngine):
        def step(self):
            raise SystemExit(3)

    async def scenario(loop):
        with pytest.raises(EngineStoppedError, match="died"):
            await read(loop.submit(request("a")))
        assert "died" in loop.failure

    run(Exits(ScriptedModel([7])), scenario)


def test_abort_frees_the_engine_and_unknown_ids_do_nothing():
    stepping, go_on = threading.Event(), threading.Event()

    def script(state):
        stepping.set()
        go_on.wait(20)
        return 7

    engine = NaiveEngine(ScriptedModel(script))

    async def scenario(loop):
        loop.submit(request("running", tokens=1000))
        loop.submit(request("waiting", tokens=1000))
        await asyncio.to_thread(stepping.wait, 20)
        for name in ("running", "waiting", "no such id"):
            loop.abort(name)
        after = loop.submit(request("after"))
        go_on.set()
        assert len(await read(after)) == 3
        assert not engine.has_work

    run(engine, scenario)
    assert len(engine.model.calls) == 1 + 3  # the step under way, and nothing for nobody after it


def test_stop_ends_what_is_in_flight_with_an_error_and_clears_the_engine():
    stepping, go_on = threading.Event(), threading.Event()

    def script(state):
        stepping.set()
        go_on.wait(20)
        return 7

    engine = NaiveEngine(ScriptedModel(script))

    async def scenario(loop):
        boxes = [loop.submit(request(f"r{i}", tokens=1000)) for i in range(3)]
        await asyncio.to_thread(stepping.wait, 20)
        loop.begin_stop()
        go_on.set()
        for ended in await asyncio.gather(*map(read, boxes), return_exceptions=True):
            assert isinstance(ended, EngineStoppedError)
        with pytest.raises(EngineStoppedError, match="shutting down"):
            loop.submit(request("late"))

    run(engine, scenario)
    assert not engine.has_work
    assert len(engine.model.calls) == 1


def test_before_the_start_and_after_a_second_start_it_says_what_is_wrong():
    loop = EngineLoop(NaiveEngine(ScriptedModel([7])))
    with pytest.raises(EngineStoppedError, match="not been started"):
        loop.submit(request("r"))
    loop.stop()

    async def scenario(started):
        with pytest.raises(RuntimeError, match="started before"):
            started.start()

    run(NaiveEngine(ScriptedModel([7])), scenario)


def test_a_mailbox_gives_all_there_is_at_once_then_waits_and_ends_with_the_last():
    first, second = StepOutput("r", ()), StepOutput("r", (), error="not the last")
    last = StepOutput("r", (), FinishReason.LENGTH)

    async def scenario():
        mailbox = Mailbox()
        mailbox.put(first)
        mailbox.put(second)
        asyncio.get_running_loop().call_soon(mailbox.put, last)  # only a reader who waits sees it
        return [outputs async for outputs in mailbox]

    assert asyncio.run(scenario()) == [[first, second], [last]]


def test_a_mailbox_raises_a_failure_only_after_what_came_before_it():
    async def scenario():
        mailbox = Mailbox()
        mailbox.put(StepOutput("r", ()))
        mailbox.put(EngineStoppedError("gone"))
        assert await anext(mailbox) == [StepOutput("r", ())]
        with pytest.raises(EngineStoppedError, match="gone"):
            await anext(mailbox)
        assert [outputs async for outputs in mailbox] == []

    asyncio.run(scenario())


def test_a_reader_who_is_cancelled_leaves_a_mailbox_that_still_takes_outputs():
    async def scenario():
        mailbox = Mailbox()
        reading = asyncio.ensure_future(anext(mailbox))
        await asyncio.sleep(0)
        reading.cancel()
        mailbox.put(StepOutput("r", (), FinishReason.LENGTH))  # between the cancel and its arrival
        with pytest.raises(asyncio.CancelledError):
            await reading
        assert [outputs async for outputs in mailbox] == [[StepOutput("r", (), FinishReason.LENGTH)]]

    asyncio.run(scenario())


def test_requests_submitted_together_share_a_mailbox_until_all_have_ended():
    async def scenario(loop):
        return await read(loop.submit(request("a", 2), request("b", 3)))

    outputs = run(NaiveEngine(ScriptedModel([7])), scenario)
    assert [output.request_id for output in outputs] == ["a", "a", "b", "b", "b"]


def test_of_requests_submitted_together_one_that_is_refused_takes_the_others_along():
    engine = NaiveEngine(ScriptedModel([7]))

    async def scenario(loop):
        with pytest.raises(InvalidRequestError, match="prompt"):
            await read(loop.submit(request("a"), request("b"), request("bad", prompt=(999,))))
        return await read(loop.submit(request("a")))  # its id is free again

    assert len(run(engine, scenario)) == 3
    assert not engine.has_work
    assert len(engine.model.calls) == 3  # nothing was computed for those who were refused


def test_the_engine_is_never_more_than_a_step_ahead_of_its_readers_and_can_be_stopped_there():
    third = threading.Event()

    def script(state):
        if len(state.output_ids) == 2:
            third.set()
        return 7

    engine = NaiveEngine(ScriptedModel(script))

    async def scenario(loop):
        loop.submit(request("a", tokens=1000))
        assert not third.wait(0.2)  # this thread is the readers', and it does not come to them
        assert len(engine.model.calls) == 2
        loop.stop(timeout=20)
        assert not third.is_set()

    run(engine, scenario)
    assert not engine.has_work


def test_a_step_that_does_not_end_does_not_hold_up_the_stop(caplog):
    stepping, go_on = threading.Event(), threading.Event()

    def script(state):
        stepping.set()
        go_on.wait(20)
        return 7

    async def scenario(loop):
        mailbox = loop.submit(request("a"))
        assert await asyncio.to_thread(stepping.wait, 20)
        loop.stop(timeout=0.05)
        with pytest.raises(EngineStoppedError, match="shutting down"):
            await anext(mailbox)  # told at once, while the step goes on
        go_on.set()

    run(NaiveEngine(ScriptedModel(script)), scenario)
    assert "still inside a step" in caplog.text
