"""A reader's admission loop in a small world: who waits, who runs, which slots are free, and what it did."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from inspect import isgenerator
from typing import Any

from servelib.engine.scheduler import Limits
from servelib.exercises.check import Mistake


@dataclass(frozen=True, slots=True)
class Waiting:
    """A request in the queue, as the exercise hands it out."""

    request_id: str
    prompt_tokens: int


Admit = Callable[[deque[Waiting], dict[str, int], list[int], Limits], Any]
"""The reader's function: (waiting, running, free, limits). It moves; what it returns is not looked at."""


class World:
    """The queue, the running requests with their slots, and the free slots, as one step finds them.

    ``step`` calls the reader's function and raises ``Mistake`` on what no admission may ever do.
    """

    def __init__(self, admit: Admit, *, slots: int = 8, max_num_seqs: int = 8, tokens: int = 64) -> None:
        self.limits = Limits(max_num_seqs, tokens)
        self.waiting: deque[Waiting] = deque()
        self.running: dict[str, int] = {}
        self.free = list(range(slots))
        self._admit = admit
        self._slots = slots

    def arrive(self, **prompts: int) -> World:
        """Put requests at the end of the queue: name and prompt tokens. Gives itself back."""
        self.waiting.extend(Waiting(name, tokens) for name, tokens in prompts.items())
        return self

    def run(self, **slots: int) -> World:
        """Let requests run in these slots, as if admitted in an earlier step. Gives itself back."""
        self.running |= slots
        self.free = [slot for slot in self.free if slot not in slots.values()]
        return self

    def leave(self, name: str) -> None:
        """A request has ended: its slot is free again."""
        self.free = sorted([*self.free, self.running.pop(name)])

    def step(self, tried: str) -> list[str]:
        """Call the function once: the names it let in, in order."""
        queue, before = list(self.waiting), dict(self.running)
        answer = self._admit(self.waiting, self.running, self.free, self.limits)
        if isgenerator(answer):
            hint = "yield turns your function into a generator, which has run nothing yet. Take it out."
            raise Mistake(tried, "requests moved from waiting to running", "a generator", hint)
        self._check_moves(tried, queue, before)
        self._check_slots(tried, before)
        return [name for name in self.running if name not in before]

    def expect(self, tried: str, names: Sequence[str], hint: str) -> None:
        """One step that must let exactly ``names`` in."""
        got = self.step(tried)
        if got != list(names):
            raise Mistake(tried, _who(names), _who(got), hint)

    def whom(self) -> list[str]:
        """Whom one step must let in: the definition."""
        left = self.limits.max_num_batched_tokens - len(self.running)
        room = min(len(self.free), self.limits.max_num_seqs - len(self.running))
        names: list[str] = []
        for request in self.waiting:
            if len(names) == room or request.prompt_tokens > left:
                break
            left -= request.prompt_tokens
            names.append(request.request_id)
        return names

    def _check_moves(self, tried: str, queue: list[Waiting], before: dict[str, int]) -> None:
        known = {request.request_id for request in queue} | before.keys()
        if strangers := [str(name) for name in self.running if name not in known]:
            hint = "The key of running is the request's own id: running[request.request_id] = slot."
            raise Mistake(tried, "running holds request ids", f"a key {strangers[0]!r}", hint)
        for name, slot in before.items():
            if self.running.get(name) != slot:
                hint = "Who runs already stays where it is: its keys and values are in that slot."
                got = "no slot" if name not in self.running else f"slot {self.running[name]}"
                raise Mistake(tried, f"{name} still runs in slot {slot}", got, hint)
        still = [request.request_id for request in self.waiting]
        for request in queue:
            name = request.request_id
            places = still.count(name) + (name in self.running)
            if places == 0:
                hint = (
                    "You take it out of waiting and lose it. Look at waiting[0] first; take it when it fits."
                )
                raise Mistake(tried, f"{name} waits or runs", f"{name} is in neither", hint)
            if places > 1:
                hint = "Take it out of the queue when you let it in: waiting.popleft()."
                raise Mistake(tried, f"{name} waits or runs", f"{name} does both", hint)
        order = [request.request_id for request in queue if request.request_id in still]
        if still != order:
            hint = "Who must wait keeps its turn. Do not take it out and put it back at the end."
            raise Mistake(
                tried, "the queue in the order " + ", ".join(order), "the order " + ", ".join(still), hint
            )

    def _check_slots(self, tried: str, before: dict[str, int]) -> None:
        for name, slot in self.running.items():
            if isinstance(slot, bool) or slot not in range(self._slots):
                hint = "Slots are the numbers in free. Take one from there: free.pop(0)."
                raise Mistake(tried, f"a slot from 0 to {self._slots - 1} for {name}", repr(slot), hint)
            others = [other for other, taken in self.running.items() if taken == slot and other != name]
            if others:
                hint = (
                    "Two requests in one slot overwrite each other's keys and values. Take the number out of "
                    "free as you give it away, free.pop(0); do not count or guess it."
                )
                raise Mistake(tried, "a slot for each", f"{others[0]} and {name} share slot {slot}", hint)
        held = sorted(self.running.values())
        if both := sorted(set(held) & set(self.free)):
            hint = (
                "The next to come would get it too, and overwrite what is there. Take the number out as you "
                "give it away: free.pop(0)."
            )
            raise Mistake(tried, "a taken slot is not free", f"slot {both[0]} is taken and in free", hint)
        if sorted([*self.free, *held]) != list(range(self._slots)):
            hint = "A slot is free or taken, and free.pop(0) changes that. Take one only for whom you let in."
            got = f"slots taken {held}, slots free {sorted(self.free)}"
            raise Mistake(tried, f"{self._slots} slots, each free or taken", got, hint)


def _who(names: Sequence[str]) -> str:
    return (
        ", ".join(names) + " get in"
        if len(names) > 1
        else f"{names[0]} gets in"
        if names
        else "nobody gets in"
    )
