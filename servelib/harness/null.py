"""An engine that does nothing, to find out what the harness itself costs."""

from __future__ import annotations

from servelib.clock import WallClock
from servelib.harness.drive import drive
from servelib.harness.trace import Trace, TraceRequest
from servelib.model.scripted import ScriptedModel
from servelib.request import FinishReason, Request, SampledToken, StepOutput

TOKEN = (SampledToken(97),)


class NullEngine:
    """Gives every request in flight one token a step, all of them written beforehand."""

    name = "null"

    def __init__(self) -> None:
        self.model = ScriptedModel([97])
        self._left: dict[str, int] = {}
        self._output: dict[str, StepOutput] = {}

    @property
    def has_work(self) -> bool:
        """Whether a request is in flight."""
        return bool(self._left)

    def add_request(self, request: Request) -> None:
        """Take it."""
        self._left[request.request_id] = request.sampling.max_tokens
        self._output[request.request_id] = StepOutput(request.request_id, TOKEN)

    def step(self) -> list[StepOutput]:
        """One token for each."""
        outputs = []
        for name, left in list(self._left.items()):
            if left > 1:
                self._left[name] = left - 1
                outputs.append(self._output[name])
            else:
                self.abort(name)
                outputs.append(StepOutput(name, TOKEN, FinishReason.LENGTH))
        return outputs

    def abort(self, request_id: str) -> None:
        """Forget it."""
        self._left.pop(request_id, None)
        self._output.pop(request_id, None)


def driver_cost(streams: int = 64, tokens: int = 256) -> float:
    """Seconds that the in-process driver takes for a token event, all else being free.

    ``streams`` requests at once, of ``tokens`` each. The null engine's own time is in it.
    """
    asked = tuple(TraceRequest(f"null-{i}", 0.0, (97,), tokens) for i in range(streams))
    clock = WallClock()
    before = clock.now()
    drive(NullEngine(), Trace(asked, "at once", "1", str(tokens), seed=0), clock)
    return (clock.now() - before) / (streams * tokens)
