"""How long a writer waits for a reader."""

from __future__ import annotations

import asyncio


class Patience:
    """Drops a reader who takes nothing for ``pause`` seconds, or who still has not taken all at ``until``.

    Looks once every ``pause`` seconds, and only while something waits to be taken.
    """

    def __init__(
        self, transport: asyncio.WriteTransport, loop: asyncio.AbstractEventLoop, pause: float
    ) -> None:
        self.until = 0.0  # on the clock of ``loop``
        self._transport = transport
        self._loop = loop
        self._pause = pause
        self._unsent = 0  # bytes that waited when the timer was set
        self._timer: asyncio.TimerHandle | None = None

    def begin(self) -> None:
        """Something waits: the reader's time runs."""
        self.end()
        self._unsent = self._transport.get_write_buffer_size()
        self._timer = self._loop.call_later(self._pause, self._look)

    def end(self) -> None:
        """All was taken, or nobody waits any more."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _look(self) -> None:
        reads = self._transport.get_write_buffer_size() < self._unsent
        if reads and self._loop.time() < self.until:
            self.begin()  # slow, but there is time
        else:
            self._transport.abort()
