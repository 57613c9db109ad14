"""The closed loop, for contrast: a fixed number of callers, each waiting for its answer before it asks again.

A slow server then gets fewer requests, so the load adapts to what is being measured and a stall hides
all the requests that would have come during it. It answers "how long does one of N patient callers
wait", never "what will happen at this arrival rate".
"""

from __future__ import annotations

from collections.abc import Callable

from servelib.clock import Clock
from servelib.engine.protocol import Engine
from servelib.errors import check_int
from servelib.harness.drive import Progress, drive
from servelib.harness.records import RunRecord
from servelib.harness.trace import Trace


def drive_closed(
    engine: Engine,
    trace: Trace,
    clock: Clock,
    callers: int,
    *,
    on_progress: Progress | None = None,
    should_stop: Callable[[], bool] | None = None,
) -> RunRecord:
    """Run ``trace`` with ``callers`` callers and return every record, in the order of the trace.

    The trace gives prompts and lengths; its times are not used. ``scheduled`` is when a caller was
    free to ask. All else is as in ``drive``.
    """
    check_int("callers", callers, 1)
    return drive(engine, trace, clock, callers=callers, on_progress=on_progress, should_stop=should_stop)
