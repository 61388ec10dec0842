"""What lies ahead of a mean that comes late: while a round was under way, its members trained on.

A part holds one node's state.  It is told of every mean that is taken, and returns what to put on top of it.
"""

from typing import Protocol

import numpy as np

from atoll.exchange import Vector

__all__ = ["Ahead", "OwnSteps", "SharedSteps"]


class Ahead(Protocol):
    """What a node puts on top of a late mean, and what it contributes to the next."""

    def __call__(self, mean: Vector, drift: Vector, step: int, steps_since: int) -> Vector:
        """What to add to `mean`.

        Args:
            mean: the result of a round.
            drift: what the node's own steps since the snapshot have changed.
            step: the node's step at the snapshot.
            steps_since: own steps since then.
        """

    def contribution(self, snapshot: Vector) -> Vector:
        """What a node whose model is `snapshot` gives to the round that it begins."""


class OwnSteps:
    """The node's own steps: x ← mean + (x − snapshot)."""

    def __call__(self, mean: Vector, drift: Vector, step: int, steps_since: int) -> Vector:  # noqa: ARG002 - the shape
        return drift

    def contribution(self, snapshot: Vector) -> Vector:
        return snapshot


class SharedSteps:
    """As far as everybody moved in as many steps before, on average: x ← mean + steps · (mean − last mean)/interval.

    A node's own steps are noisy, and on a shard of one label they lead astray; what all nodes did together is neither.
    Own steps are not lost: the difference goes with the node's next contribution.  Extrapolation reaches no further
    than the interval that it was measured over; beyond that, own steps count.

    Args:
        reach: how much of the movement to expect; 0: none, x ← mean.
    """

    def __init__(self, *, reach: float = 1.0) -> None:
        self._reach = reach
        self._last: tuple[Vector, int] | None = None
        self._kept: Vector | None = None

    def __call__(self, mean: Vector, drift: Vector, step: int, steps_since: int) -> Vector:
        last, self._last = self._last, (mean, step)
        if last is None or steps_since == 0:
            return drift
        interval = step - last[1]
        share = min(1.0, interval / steps_since)
        movement = (mean - last[0]) * np.float32(self._reach * share * steps_since / interval)
        ahead: Vector = movement + np.float32(1 - share) * drift
        kept = drift - ahead
        self._kept = kept if self._kept is None else self._kept + kept
        return ahead

    def contribution(self, snapshot: Vector) -> Vector:
        kept, self._kept = self._kept, None
        return snapshot if kept is None else snapshot + kept
