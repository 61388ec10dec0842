"""From events to results: which nodes have reached the target, and when.

Callers pass all events through it in order, while a run continues or from its trace.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

from atoll.trace.events import Event, FaultChanged, MeanTested, Tested, TrainingStarted
from atoll.trace.island_events import IslandsFormed

__all__ = ["Arrivals", "Targets", "finite_measure"]

WORST_LOSS = 1e9


def finite_measure(measure: float, *, rising: bool) -> float:
    """A measure; one that is not finite becomes the worst possible.

    Args:
        measure: the measure.
        rising: whether it rises towards the target, as accuracy does.
    """
    return measure if math.isfinite(measure) else (0.0 if rising else WORST_LOSS)


@dataclass(slots=True)
class Arrivals:
    """When the target was first reached, in seconds; `None`: never."""

    any: float | None = None
    """By the first node."""
    half: float | None = None
    """By half of the nodes that were live then."""
    all: float | None = None
    """By all nodes that were live then."""
    mean: float | None = None
    """By the mean of all models."""


class Targets:
    """Which nodes have reached the target.

    With islands, each current island counts as a node, by its last stage.

    Args:
        nodes: the nodes of the run.
    """

    def __init__(self, nodes: Sequence[str]) -> None:
        self._nodes = set(nodes)
        self._gone: set[str] = set()
        self._islands: set[str] | None = None
        self._there: dict[str, bool] = {}
        self._training: TrainingStarted | None = None
        self.arrivals = Arrivals()

    @property
    def live(self) -> int:
        """How many nodes, or islands, are live."""
        return len(self._nodes - self._gone) if self._islands is None else len(self._islands)

    @property
    def arrived(self) -> int:
        """How many of them are at the target now."""
        return sum(self._there.values())

    def watch(self, event: Event) -> None:
        """Processes the next event."""
        if isinstance(event, TrainingStarted):
            self._training = self._training or event
        elif isinstance(event, IslandsFormed):
            self._islands = event.lasts
            self._there = {name: arrived for name, arrived in self._there.items() if name in event.lasts}
        elif isinstance(event, FaultChanged) and event.is_crash:
            self._gone = self._gone.union(event.nodes) if event.on else self._gone.difference(event.nodes)
            for name in event.nodes:  # its progress is lost
                self._there.pop(name, None)
            if self._islands is not None:
                self._islands = self._islands.difference(event.nodes)
        elif isinstance(event, Tested) and self._training:
            self._there[event.node] = self._training.reached(event.measure)
            self._arrive(event.at)
        elif isinstance(event, MeanTested) and self._training and self._training.reached(event.measure):
            self.arrivals.mean = event.at if self.arrivals.mean is None else self.arrivals.mean

    def _arrive(self, now: float) -> None:
        found, live = self.arrivals, max(1, self.live)
        if found.any is None and self.arrived >= 1:
            found.any = now
        if found.half is None and self.arrived >= math.ceil(live / 2):
            found.half = now
        if found.all is None and self.arrived >= live:
            found.all = now
