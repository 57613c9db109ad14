"""An engine for tests that runs every request at once, a burst of tokens a step."""

from __future__ import annotations

from collections.abc import Callable

from servelib.model.scripted import ScriptedModel
from servelib.request import Request, RequestState, SampledToken, StepOutput


class Lockstep:
    """Gives each live request up to ``burst`` tokens of its script a step, all in one list."""

    name = "lockstep"

    def __init__(self, script: Callable[[RequestState], int], burst: int = 1) -> None:
        self.model = ScriptedModel(script)
        self.burst = burst
        self.live: dict[str, RequestState] = {}

    @property
    def has_work(self) -> bool:
        return bool(self.live)

    def add_request(self, request: Request) -> None:
        config = self.model.config
        request.check_against(vocab_size=config.vocab_size, context=config.context)
        self.live[request.request_id] = RequestState(request, eos_id=config.eos_id)

    def step(self) -> list[StepOutput]:
        outputs = []
        for request_id, state in list(self.live.items()):
            tokens: list[SampledToken] = []
            while len(tokens) < self.burst and state.finish_reason is None:
                tokens.append(self.model.sample(None, state))
                state.append(tokens[-1].token_id)
            if state.finish_reason is not None:
                del self.live[request_id]
            outputs.append(StepOutput(request_id, tuple(tokens), state.finish_reason))
        return outputs

    def abort(self, request_id: str) -> None:
        self.live.pop(request_id, None)


def number_of(request_id: str) -> int:
    """Which choice of its call a request is: the end of its id."""
    return int(request_id.split("-")[2]) if request_id.count("-") > 1 else 0
