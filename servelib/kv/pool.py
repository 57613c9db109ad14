"""Who may hold cache memory, and which piece of it: the control side of every batched cache."""

from __future__ import annotations

import heapq
from typing import Any, Protocol

from servelib.errors import InvalidRequestError, check_int
from servelib.request import RequestState


class Pool(Protocol):
    """What a scheduler asks of cache memory, whatever its layout. No tensors: places only."""

    def check(self, tokens: int) -> None:
        """Raise ``InvalidRequestError`` for a request of ``tokens`` that could never be held."""
        ...

    def admit(self, state: RequestState) -> int | None:
        """Give a request a place; None if none is free. How many of its tokens are held there already.

        At least its last token is never held: a step must run it to say what comes next.
        """
        ...

    def grow(self, state: RequestState, tokens: int) -> bool:
        """Make room for ``tokens`` in all, before they are computed. False if there is none now."""
        ...

    def place(self, state: RequestState) -> Any:
        """Where a request's keys and values are, in the words of the tensors that hold them.

        Asked once a step, when the room for all of the step's tokens is there.
        """
        ...

    def release(self, state: RequestState) -> None:
        """Take the place back."""
        ...

    def check_integrity(self, holders: set[str]) -> None:
        """Raise ``AssertionError`` unless exactly ``holders`` hold places, each its own, none lost."""
        ...


class SlotPool:
    """A fixed number of slots of equal size, one for a request, from admission to its end.

    The lowest free slot is given first: then the slots in use lie close together, and the tensors that
    a step reads are short. The price is chapter 7's: a slot is as large as the longest request.
    """

    def __init__(self, slots: int, size: int) -> None:
        check_int("slots", slots, 1)
        check_int("slot size", size, 1)
        self.slots, self.size = slots, size
        self._free = list(range(slots))  # a heap
        self._held: dict[str, int] = {}

    def check(self, tokens: int) -> None:
        """See ``Pool``."""
        if tokens > self.size:
            raise InvalidRequestError(
                "prompt and max_tokens", f"{tokens} tokens", f"at most {self.size}: a slot"
            )

    def admit(self, state: RequestState) -> int | None:
        """See ``Pool``. A fresh slot holds nothing of the request."""
        if not self._free:
            return None
        self._held[state.request.request_id] = heapq.heappop(self._free)
        return 0

    def grow(self, state: RequestState, tokens: int) -> bool:
        """See ``Pool``. The slot was large enough from the start."""
        return tokens <= self.size

    def place(self, state: RequestState) -> int:
        """The number of the request's slot."""
        return self._held[state.request.request_id]

    def release(self, state: RequestState) -> None:
        """See ``Pool``."""
        heapq.heappush(self._free, self._held.pop(state.request.request_id))

    def check_integrity(self, holders: set[str]) -> None:
        """See ``Pool``."""
        assert set(self._held) == holders, f"slots held by {set(self._held)}, requests running {holders}"
        assert sorted([*self._free, *self._held.values()]) == list(range(self.slots)), (
            "a slot is lost or shared"
        )
