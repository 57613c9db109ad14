"""Where the outputs of requests wait for their reader."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from servelib.request import StepOutput

if TYPE_CHECKING:
    from servelib.server.ledger import Life


class Mailbox:
    """The outputs of requests submitted together, each up to its last one. Belongs to the event loop.

    ``async for outputs in mailbox`` gives lists, never empty: everything that has come since the last
    look, so that a reader who was held up catches up in one turn. It never holds more than the requests
    may generate: a slow reader costs a bounded amount and slows nobody else.
    """

    __slots__ = ("_failure", "_open", "_outputs", "_waiter", "lives")

    def __init__(self, requests: int = 1) -> None:
        self.lives: tuple[Life, ...] = ()  # the requests' lives, once they are admitted
        self._open = requests  # how many have not had their last output taken
        self._outputs: list[StepOutput] = []
        self._failure: Exception | None = None  # raised after the outputs that came before it
        self._waiter: asyncio.Future[None] | None = None

    def put(self, item: StepOutput | Exception) -> None:
        """Add an output, or the reason why there will be none. Event loop only."""
        if isinstance(item, Exception):
            self._failure = self._failure or item
        else:
            self._outputs.append(item)
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)

    def __aiter__(self) -> Mailbox:
        return self

    async def __anext__(self) -> list[StepOutput]:
        if self._open <= 0:
            raise StopAsyncIteration
        while not self._outputs:
            if self._failure is not None:
                self._open = 0
                raise self._failure
            self._waiter = asyncio.get_running_loop().create_future()
            try:
                await self._waiter
            finally:
                self._waiter = None
        outputs, self._outputs = self._outputs, []
        self._open -= sum(output.finish_reason is not None for output in outputs)
        return outputs
