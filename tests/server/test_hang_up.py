"""Callers who leave at random moments, in crowds: afterwards nothing of them is left."""

import asyncio
import gc
import random
import resource
import threading
import weakref

import pytest
from raw import Raw, head
from serving import CHAT, COMPLETION, Gate, Served, eventually, serving

from servelib.clock import WallClock
from servelib.engine.registry import make_engine
from servelib.model.scripted import ScriptedModel
from servelib.server.ledger import Outcome
from servelib.server.run import BackgroundServer
from servelib.server.settings import ServerSettings
from servelib.spans import SpanLog

CLIENTS = 32
FINISHED = {outcome: f'servelib_requests_finished_total{{reason="{outcome.value}"}}' for outcome in Outcome}


class Cache(list):
    """What a model keeps for a request; unlike a plain list, its end can be seen."""


class Watched(ScriptedModel):
    """Knows which of its caches still exist."""

    def __init__(self):
        super().__init__([ord("a")])
        self.caches = []

    def new_cache(self):
        cache = Cache()
        self.caches = [ref for ref in self.caches if ref() is not None]
        self.caches.append(weakref.ref(cache))
        return cache


def in_balance(signals):
    """Whether everyone who came is waiting, running, or gone."""
    finished = sum(signals[name] for name in FINISHED.values())
    here = signals["servelib_requests_running"] + signals["servelib_requests_waiting"]
    return signals["servelib_requests_started_total"] == finished + here


def visit(url, chance):
    """A caller who will leave: some say half a sentence, some read a little, some never listen."""
    client = Raw(url)
    path, body = chance.choice([("/v1/completions", COMPLETION), ("/v1/chat/completions", CHAT)])
    stream, tokens = chance.random() < 0.5, chance.choice([1, 3, 50, 200])
    body = {**body, "stream": stream, "max_tokens": tokens, "n": chance.choice([1, 1, 1, 3])}
    if chance.random() < 0.15:
        client.send(head(path, "content-length: 500")[: chance.randrange(1, 120)])
    else:
        client.post(path, body)
        if stream and chance.random() < 0.5:
            client.socket.recv(chance.choice([1, 100, 5000]))
    return client


def tasks_of(server):
    """What the tasks of the server's event loop run, asked of that loop itself."""
    loop = server.app.state.service.loop._event_loop

    async def names():
        others = asyncio.all_tasks() - {asyncio.current_task()}
        return sorted(task.get_coro().__qualname__ for task in others)

    return asyncio.run_coroutine_threadsafe(names(), loop).result(20)


@pytest.mark.parametrize(("name", "rounds"), [("continuous", 50), ("cached", 5)])
def test_crowds_that_leave_at_random_moments_leave_nothing_behind(name, rounds):
    chance = random.Random(7)
    model = Watched()
    engine = make_engine(name, model, WallClock())
    settings = ServerSettings(max_waiting=24)
    with BackgroundServer(engine, settings=settings) as server:
        served = Served(server, engine, SpanLog())
        expected = served.post("/v1/completions", COMPLETION)[1]["choices"]
        threads = threading.active_count()
        for _ in range(rounds):
            crowd = [visit(server.url, chance) for _ in range(CLIENTS)]
            chance.shuffle(crowd)
            for client in crowd:
                client.socket.close()
            assert in_balance(served.metrics())
        connections = server._server.server_state.connections
        assert eventually(lambda: not connections)
        assert eventually(lambda: not engine.has_work)
        signals = served.metrics()
        assert in_balance(signals)
        assert signals["servelib_requests_running"] == signals["servelib_requests_waiting"] == 0
        assert signals[FINISHED[Outcome.ABORT]] > 0
        assert eventually(lambda: tasks_of(server) == ["LifespanOn.main", "Server.serve"]), tasks_of(server)
        assert threading.active_count() == threads
        assert not server.app.state.service.loop._held
        gc.collect()
        assert [ref for ref in model.caches if ref() is not None] == []
        if name == "continuous":
            assert engine._queued == {}
            engine.scheduler.pool.check_integrity(set())
        assert served.post("/v1/completions", COMPLETION)[1]["choices"] == expected
        served.client.close()


def test_streams_beside_five_hundred_idle_connections_complete_and_the_idle_ones_are_closed():
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    need = 2 * 500 + 200  # both ends are in this process
    if soft < need:
        resource.setrlimit(resource.RLIMIT_NOFILE, (min(need, hard), hard))
    gate = Gate(free=1)
    try:
        with serving(gate, head_timeout=2.0) as served:
            idle = [Raw(served.url) for _ in range(500)]
            assert eventually(lambda: len(served.server._server.server_state.connections) == 500)
            streams = [
                Raw(served.url).post("/v1/completions", {**COMPLETION, "stream": True}) for _ in range(4)
            ]
            assert gate.reached.wait(20)
            gate.opened.set()
            for stream in streams:
                text = b""
                while b"[DONE]" not in text:
                    more = stream.some()
                    assert more
                    text += more
                assert text.count(b'"text":"a"') == 16
                stream.socket.close()
            for connection in idle:  # returns: the server left
                assert connection.rest() == b""
                connection.socket.close()
            assert served.health() == 200
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
