"""A panel with a real run: a button that starts it in the background, one that stops it, its progress."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from typing import Any

import ipywidgets as w

from servelib.harness.records import RunRecord
from servelib.harness.sweep import Point
from servelib.notebook.background import BackgroundRun, stop_all
from servelib.notebook.panel import Panel


class RunPanel(Panel):
    """A ``Panel`` that measures, too. ``requests`` is how many end in a whole run.

    A subclass says what ``start`` does, by ``_begin``, and keeps ``offer`` up to date: what the button
    says while nothing runs.
    """

    def __init__(self, controls: Sequence[Any], body: Sequence[Any], *, requests: int, offer: str) -> None:
        self.offer = offer
        self.error: Exception | None = None  # of the last real run, for a closer look
        self._run: BackgroundRun | None = None
        self._lock = threading.RLock()  # the kernel's thread and the run's thread both write to the view
        self.run_button = w.Button(
            description=offer, button_style="primary", icon="play", layout={"width": "auto"}
        )
        self.stop_button = w.Button(
            description="Stop", icon="stop", disabled=True, tooltip="Stop the real run"
        )
        self.progress = w.IntProgress(
            max=requests, layout={"visibility": "hidden"}, tooltip="Progress of the real run"
        )
        self.run_button.on_click(lambda _: self.start())
        self.stop_button.on_click(lambda _: self.stop())
        buttons = w.HBox([self.run_button, self.stop_button, self.progress], layout={"flex_flow": "row wrap"})
        super().__init__(controls, [*body, buttons])

    @property
    def running(self) -> bool:
        """Whether a real run is on its way."""
        return self._run is not None

    def start(self) -> None:
        """Start the real run, unless one is on its way."""
        raise NotImplementedError

    def stop(self, wait: float = 0.0) -> bool:
        """Ask the real run to stop, wait up to ``wait`` seconds, and say whether none is left."""
        run = self._run
        if run is None:
            return True
        self._say("Stopping.")
        return run.stop(wait)

    def close(self) -> None:
        """Stop what runs, and take the panel away."""
        self.stop(wait=2.0)
        super().close()

    def _begin(
        self, work: Callable[[Callable[[], bool]], Point], show: Callable[[list[RunRecord]], str]
    ) -> None:
        """Run ``work`` in a thread. ``show`` keeps the runs that are whole, and says what came of them."""
        stop_all()  # of another panel
        self.error = None
        self.run_button.disabled, self.stop_button.disabled = True, False
        self.progress.value, self.progress.layout.visibility = 0, "visible"
        self._say("Warming up.")
        self._run = BackgroundRun(work, lambda point, error: self._ended(point, error, show))
        self._run.start()

    def _advance(self, ended: int, total: int) -> None:
        with self._lock:
            self.progress.value = ended
            self._say(f"{ended} of {total} requests have ended.")

    def _ended(
        self, point: Point | None, error: Exception | None, show: Callable[[list[RunRecord]], str]
    ) -> None:
        """In the run's thread: show what came of it."""
        with self._lock:
            self._run = None
            self.run_button.disabled, self.stop_button.disabled = False, True
            self.run_button.description = self.offer
            self.progress.layout.visibility = "hidden"
            self.error = error
            whole = [run for run in point.runs if not run.interrupted] if point else []
            if error is not None:
                self._say(f"The run broke. {type(error).__name__}: {error}", alert=True)
            elif not whole:
                self._say("Stopped before one run was whole: there is nothing to put on the curve.")
            else:
                self._say(show(whole))
                self._moved(None)
