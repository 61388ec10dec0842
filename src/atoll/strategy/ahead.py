"""What lies ahead of a mean that comes late: while a round was under way, its members trained on.

A part holds one node's state.  It is told of every mean that is taken, and returns what to put on top of it.
"""

from typing import NamedTuple, Protocol

import numpy as np

from atoll.exchange import Vector

__all__ = ["Ahead", "Blend", "OwnSteps", "SharedSteps", "Steps"]


TRUSTED_STEPS = 4


class Steps(NamedTuple):
    """A node's own count."""

    then: int
    since: int


class Ahead(Protocol):
    """What a node puts on top of a late mean, and what it contributes to the next."""

    def __call__(self, mean: Vector, own: Vector, drift: Vector, steps: Steps) -> Vector:
        """What to add to `mean`.

        Args:
            mean: the result of a round.
            own: the node's model now.
            drift: what the node's own steps since the snapshot have changed in it.
            steps: when the snapshot was taken, and how many steps the node has done since.
        """

    def contribution(self, snapshot: Vector) -> Vector:
        """What a node whose model is `snapshot` gives to the round that it begins."""


class OwnSteps:
    """The node's own steps: x ← mean + (x − snapshot)."""

    def __call__(self, mean: Vector, own: Vector, drift: Vector, steps: Steps) -> Vector:  # noqa: ARG002 - the shape
        return drift

    def contribution(self, snapshot: Vector) -> Vector:
        return snapshot


class SharedSteps:
    """As far as everybody moved in as many steps before, on average: x ← mean + steps · (mean − last mean)/interval.

    A node's own steps are noisy, and on a shard of one label they lead astray; what all nodes did together is neither.
    Own steps are not lost: the difference goes with the node's next contribution.  Extrapolation reaches no further
    than the interval that it was measured over, than a few steps (a longer delay makes gradient descent unstable), or
    than own steps did; beyond that, own steps count.

    Args:
        reach: how much of the movement to expect; 0: none, x ← mean.
    """

    def __init__(self, *, reach: float = 1.0) -> None:
        self._reach = reach
        self._last: tuple[Vector, int] | None = None
        self._kept: Vector | None = None

    def __call__(self, mean: Vector, own: Vector, drift: Vector, steps: Steps) -> Vector:  # noqa: ARG002
        last, self._last = self._last, (mean, steps.then)
        if last is None or steps.since == 0:
            return drift
        interval = steps.then - last[1]
        share = min(1.0, interval / steps.since, TRUSTED_STEPS / steps.since)
        movement = (mean - last[0]) * np.float32(self._reach * share * steps.since / interval)
        movement *= np.float32(min(1.0, share * _length(drift) / max(_length(movement), 1e-30)))
        ahead: Vector = movement + np.float32(1 - share) * drift
        kept = drift - ahead
        self._kept = kept if self._kept is None else self._kept + kept
        return ahead

    def contribution(self, snapshot: Vector) -> Vector:
        kept, self._kept = self._kept, None
        return snapshot if kept is None else snapshot + kept


class Blend:
    """DASO (Coquelin et al., 2022): the node's own model counts twice for each step that it is ahead.

    x ← (2S·x + P·mean)/(2S + P), S the steps since the snapshot and P the number of members.
    """

    def __init__(self, members: int) -> None:
        self._members = members

    def __call__(self, mean: Vector, own: Vector, drift: Vector, steps: Steps) -> Vector:  # noqa: ARG002
        share = 2 * steps.since / (2 * steps.since + self._members)
        blended: Vector = (own - mean) * np.float32(share)
        return blended

    def contribution(self, snapshot: Vector) -> Vector:
        return snapshot


def _length(vector: Vector) -> float:
    return float(np.linalg.norm(vector))
