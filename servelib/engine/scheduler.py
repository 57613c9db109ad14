"""The scheduler: who runs in the next step. It decides; it computes nothing and knows no tensor.

Continuous batching (Yu et al. 2022, Orca): requests join and leave at every step. ``schedule`` returns
an explicit batch, ``commit`` takes its tokens. Whoever runs already comes first, and a token of the
step is kept for each of them: nobody's stream waits for somebody else's prompt. Then waiting requests
join in arrival order, while there is room.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from servelib.engine.batch import Batch, Row
from servelib.errors import InvalidRequestError, check_int
from servelib.kv.pool import Pool
from servelib.request import FinishReason, RequestState, RequestStatus, SampledToken, StepOutput
from servelib.spans import Stage

Share = Callable[[int, int, int], int]
"""(tokens still to prefill, tokens free in this step, tokens of a whole step) -> how many to run now."""

Guess = Callable[[RequestState], Sequence[int]]
"""Tokens that may come next, to be verified in one step."""


def whole_prompts(remaining: int, left: int, most: int) -> int:
    """A prompt runs whole, in a step with room for it. One larger than any step takes whole steps, alone."""
    if remaining <= left:
        return remaining
    return most if left == most else 0


def no_guess(state: RequestState) -> Sequence[int]:
    """Plain decoding: nothing is guessed."""
    return ()


MOST_SEQS = 1 << 16
"""More at once fit no machine's memory: a slip of the keyboard is told before memory is asked for."""


@dataclass(frozen=True, slots=True)
class Limits:
    """How much a step may hold: requests, and tokens of all of them together."""

    max_num_seqs: int = 64
    max_num_batched_tokens: int = 2048

    def __post_init__(self) -> None:
        check_int("max_num_seqs", self.max_num_seqs, 1, MOST_SEQS)
        check_int("max_num_batched_tokens", self.max_num_batched_tokens, 1)
        if self.max_num_batched_tokens < self.max_num_seqs:
            limit = f"at least {self.max_num_seqs}: max_num_seqs, a token each"
            raise InvalidRequestError("max_num_batched_tokens", self.max_num_batched_tokens, limit)


class Scheduler:
    """First come, first served, over a ``Pool`` of cache memory.

    Requests join strictly in arrival order: nobody waits behind a later arrival. When the pool has no
    room for a running request's next token, the youngest gives up its place, keeps its turn, and
    computes its tokens again later. ``share`` splits prompts over steps; ``guess`` proposes tokens.
    """

    def __init__(
        self,
        pool: Pool,
        limits: Limits | None = None,
        *,
        share: Share = whole_prompts,
        guess: Guess = no_guess,
    ) -> None:
        self.pool = pool
        self.limits = limits or Limits()
        self.preemptions = 0
        self._share = share
        self._guess = guess
        # Both in arrival order; ordered dictionaries, so that leaving from anywhere costs the same.
        self._waiting: OrderedDict[str, RequestState] = OrderedDict()
        self._running: OrderedDict[str, RequestState] = OrderedDict()

    @property
    def waiting(self) -> int:
        """Requests in the queue."""
        return len(self._waiting)

    @property
    def running(self) -> int:
        """Requests that hold a place."""
        return len(self._running)

    def add(self, state: RequestState) -> None:
        """Put a request at the end of the queue.

        Raises ``InvalidRequestError`` for a live request's id, and for one that no place can hold.
        """
        request = state.request
        if request.request_id in self._waiting or request.request_id in self._running:
            raise InvalidRequestError("request_id", request.request_id, "not the id of a live request")
        self.pool.check(len(request.prompt_ids) + request.sampling.max_tokens)
        self._waiting[request.request_id] = state

    def schedule(self) -> Batch:
        """The rows of the next step, their memory made sure of. Empty when nobody can run."""
        rows: list[Row] = []
        left = self.limits.max_num_batched_tokens
        later = len(self._running)  # a token is kept for each of them
        all_ran = True
        for state in list(self._running.values()):
            later -= 1
            row = self._grown(state, left - later) if state.status is RequestStatus.RUNNING else None
            if row is None:
                all_ran = False
                continue
            rows.append(row)
            left -= len(row.ids)
        # Whoever holds a place and could not run comes before whoever still waits for one.
        while all_ran and left and self._waiting and len(self._running) < self.limits.max_num_seqs:
            row = self._admitted(left)
            if row is None:
                break
            rows.append(row)
            left -= len(row.ids)
        return Batch(tuple(rows))

    def commit(self, batch: Batch, results: Sequence[Sequence[SampledToken] | Exception]) -> list[StepOutput]:
        """Take what each row gave: its tokens, or what went wrong with it. Who is done leaves now."""
        outputs = []
        for row, result in zip(batch.rows, results, strict=True):
            state = row.state
            if state.status is not RequestStatus.RUNNING:  # aborted while its step ran
                continue
            if isinstance(result, Exception):
                self._end(state, FinishReason.ERROR)
                error = f"{type(result).__name__}: {result}"
                outputs.append(StepOutput(row.request_id, (), FinishReason.ERROR, error))
                continue
            # Of several guessed ids only those hold that were confirmed by a token after them.
            state.computed = row.start + len(row.ids) - row.samples + len(result)
            kept: list[SampledToken] = []
            reason = None
            for token in result:
                kept.append(token)
                reason = state.append(token.token_id)
                if reason is not None:
                    self._end(state, reason)
                    break
            if kept:
                outputs.append(StepOutput(row.request_id, tuple(kept), reason))
        return outputs

    def abort(self, request_id: str) -> None:
        """Drop a request, waiting or running. An unknown or finished id has no effect."""
        state = self._waiting.get(request_id) or self._running.get(request_id)
        if state is not None:
            self._end(state, FinishReason.ABORT)

    def check_integrity(self) -> None:
        """Raise ``AssertionError`` if a place is lost, shared, or held by nobody that runs."""
        assert not self._waiting.keys() & self._running.keys(), "a request both waits and runs"
        assert all(state.status is RequestStatus.WAITING for state in self._waiting.values())
        assert not any(state.computed for state in self._waiting.values()), "held by nobody"
        assert all(state.status is RequestStatus.RUNNING for state in self._running.values())
        self.pool.check_integrity(set(self._running))

    def _next_ids(self, state: RequestState, left: int) -> tuple[Sequence[int], int]:
        """What a request would run, given ``left`` tokens, and after how many of the last one is chosen."""
        pending = state.pending_ids
        if _decodes(state):
            room = min(left, state.request.sampling.max_tokens - len(state.output_ids)) - 1
            ids = [*pending, *self._guess(state)[:room]]
            return ids, len(ids)
        share = self._share(len(pending), left, self.limits.max_num_batched_tokens)
        return pending[:share], int(share == len(pending))

    def _grown(self, state: RequestState, left: int) -> Row | None:
        """The row of a running request, its memory made sure of at the youngest's expense."""
        ids, samples = self._next_ids(state, left)
        if not ids:
            return None
        while not self.pool.grow(state, state.computed + len(ids)):
            if samples > 1:  # a guess is not worth a neighbour's place
                ids, samples = ids[:1], 1
            elif self._preempt_youngest() is state:
                return None
        return self._row(state, ids, samples)

    def _admitted(self, left: int) -> Row | None:
        """Let the head of the queue in, with its first row. None, and nothing changed, if it must wait."""
        request_id, state = next(iter(self._waiting.items()))
        held = self.pool.admit(state)
        if held is None:
            return None
        state.computed = held
        ids, samples = self._next_ids(state, left)
        if not ids or not self.pool.grow(state, held + len(ids)):
            state.computed = 0
            self.pool.release(state)
            return None
        del self._waiting[request_id]
        self._running[request_id] = state
        state.status = RequestStatus.RUNNING
        return self._row(state, ids, samples)

    def _row(self, state: RequestState, ids: Sequence[int], samples: int) -> Row:
        stage = Stage.DECODE if _decodes(state) else Stage.PREFILL
        return Row(state, self.pool.place(state), state.computed, ids, samples, stage)

    def _preempt_youngest(self) -> RequestState:
        request_id, state = self._running.popitem()
        self.pool.release(state)
        state.status = RequestStatus.WAITING
        state.computed = 0
        self._waiting[request_id] = state
        self._waiting.move_to_end(request_id, last=False)
        self.preemptions += 1
        return state

    def _end(self, state: RequestState, reason: FinishReason) -> None:
        request_id = state.request.request_id
        if self._running.pop(request_id, None) is not None:
            self.pool.release(state)
        else:
            del self._waiting[request_id]
        state.finish(reason)


def _decodes(state: RequestState) -> bool:
    """Whether all but the newest token of a request has run: nothing is left to prefill."""
    return bool(state.output_ids) and state.computed == state.length - 1
