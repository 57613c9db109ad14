"""The panel "how long does one wait": arrival rate, service time and spread against the mean wait."""

from __future__ import annotations

import ipywidgets as w

from servelib.harness.stats import Estimate
from servelib.notebook.panel import Panel, log_slider, slider
from servelib.notebook.queue_figures import WaitFigure, interval_text
from servelib.sim.queueing import WaitSimulation, mg1_wait

RATES = (0.25, 16.0)
SERVICES = (0.03125, 1.0)
WAIT_HIGH = 5.0  # seconds, the top of the figure
_LINE = tuple(i / 200 for i in range(199))  # utilisations of the theory line, to 0.99
_POINTS = (0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 0.95)  # where the simulation is shown


def waiting_knobs(
    *, rate: float = 2.0, service: float = 0.25, spread: float = 1.0, customers: int = 20_000, seed: int = 7
) -> WaitingKnobs:
    """Show the panel: make it the last line of a cell. Theory and simulation answer each move.

    ``rate`` in requests/s, ``service`` the mean service time in seconds, ``spread`` its squared
    coefficient of variation. Each point is five runs of ``customers``.
    """
    return WaitingKnobs(rate, service, spread, customers, seed)


class WaitingKnobs(Panel):
    """The panel. Its sliders are attributes, so that code can turn them too."""

    def __init__(self, rate: float, service: float, spread: float, customers: int, seed: int) -> None:
        self._customers, self._seed = customers, seed
        self._simulation: WaitSimulation | None = None
        self._points: dict[float, Estimate] = {}  # by utilisation, of the simulation above
        self.rate = log_slider("arrival rate (requests/s)", rate, *RATES)
        self.service = log_slider("mean service time (s)", service, *SERVICES)
        self.spread = slider("spread of service, cv²", spread, 0.0, 4.0, 0.25)
        self.figure = WaitFigure(rate_high=RATES[1], wait_high=WAIT_HIGH)
        self.headline = w.HTML()
        super().__init__([self.rate, self.service, self.spread], [self.headline, self.figure.widget])
        self.refresh()

    def refresh(self) -> None:
        """Bring headline and figure up to the knobs."""
        rate, service, spread = self.rate.value, self.service.value, self.spread.value
        simulation = self._simulate(spread)
        utilisation = rate * service
        said = f"{rate:.3g} requests/s × {service:.3g} s = utilisation {utilisation:.2f}. "
        here: float | None = None
        if utilisation < 1:
            here = mg1_wait(rate, service, spread)
            seen = interval_text(_scaled(simulation.mean_wait(utilisation), service), ".3g")
            said += f"Mean wait: {here:.3g} s in theory, {seen} s simulated."
        else:
            said += "More comes than can be served: the line grows without end, and there is no mean wait."
        self.headline.value = f'<div role="status">{said}</div>'
        self.figure.show(
            [(load / service, mg1_wait(load / service, service, spread)) for load in _LINE],
            {load / service: _scaled(wait, service) for load, wait in self._points.items()},
            (rate, here),
            f"Mean wait against the arrival rate, for a spread of cv² = {spread:g}. It climbs without bound "
            f"as the rate nears {1 / service:.3g} requests/s. {said}",
        )

    def _simulate(self, spread: float) -> WaitSimulation:
        """The draws of this spread. The other knobs only scale their answer."""
        if self._simulation is None or self._simulation.cv2 != spread:
            simulation = WaitSimulation(spread, customers=self._customers, seed=self._seed)
            self._points = {load: simulation.mean_wait(load) for load in _POINTS}
            self._simulation = simulation
        return self._simulation


def _scaled(wait: Estimate, service: float) -> Estimate:
    """From units of the mean service time to seconds."""
    value, low, high = (None if x is None else service * x for x in (wait.value, wait.low, wait.high))
    return Estimate(value, low, high, n=wait.n, samples=wait.samples)
