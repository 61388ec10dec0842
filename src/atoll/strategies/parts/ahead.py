"""What lies ahead of a mean that comes late: while a round was under way, its members trained on.

A part holds one node's state.  It is told of every mean that is taken, and returns what to put on top of it.
"""

import abc
from typing import NamedTuple

import numpy as np

from atoll.vectors import Vector

__all__ = ["Ahead", "Blend", "Consensus", "FirstSteps", "OwnSteps", "SharedSteps", "Steps"]


TRUSTED_STEPS = 4


class Steps(NamedTuple):
    """A node's own count."""

    then: int
    """When a snapshot was taken."""
    since: int
    """How many it has done since."""
    members: int = 1
    """How many nodes the run has."""


class Ahead(abc.ABC):
    """What a node puts on top of a late mean, and what it contributes to the next."""

    adds = False
    """Whether what lies ahead is just what the node's own steps have changed: the mean then comes as a change too."""

    @abc.abstractmethod
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
        return snapshot

    def give_back(self, kept: Vector) -> None:  # noqa: B027 - most keep nothing
        """A round is given up: what the contribution to it had beyond the snapshot goes with the next."""

    def restart(self) -> None:  # noqa: B027 - most know of no members
        """Rounds are among others from now on."""

    @property
    def unused(self) -> Vector | None:
        """What of the node's own steps goes with its next contribution; `None`: nothing."""
        return None

    @property
    def pulls(self) -> bool:
        """Whether it changes gradients."""
        return type(self).pull is not Ahead.pull

    def pull(self, values: Vector) -> Vector | None:  # noqa: ARG002 - for those who pull
        """What to add to the gradient at every step; `None`: nothing."""
        return None


class OwnSteps(Ahead):
    """The node's own steps: x ← mean + (x − snapshot)."""

    adds = True

    def __call__(self, mean: Vector, own: Vector, drift: Vector, steps: Steps) -> Vector:  # noqa: ARG002 - the shape
        return drift


class _Keeping(Ahead):
    """What a node did not use of its own steps goes with its next contribution."""

    def __init__(self) -> None:
        self._kept: Vector | None = None

    @property
    def unused(self) -> Vector | None:
        return self._kept

    def contribution(self, snapshot: Vector) -> Vector:
        kept, self._kept = self._kept, None
        return snapshot if kept is None else snapshot + kept

    def give_back(self, kept: Vector) -> None:
        self._kept = kept if self._kept is None else self._kept + kept


class FirstSteps(_Keeping):
    """The node's own steps while they are few: a mean is followed by a few steps of what led to it, not by more.

    What lies beyond goes with the next contribution.
    """

    def __call__(self, mean: Vector, own: Vector, drift: Vector, steps: Steps) -> Vector:  # noqa: ARG002
        if steps.since <= TRUSTED_STEPS:
            return drift
        ahead: Vector = drift * np.float32(TRUSTED_STEPS / steps.since)
        self.give_back(drift - ahead)
        return ahead


class SharedSteps(_Keeping):
    """As far as everybody moved in as many steps before, on average: x ← mean + steps · (mean − last mean)/interval.

    A node's own steps are noisy, and on a shard of one label they lead astray; what all nodes did together is neither.
    Own steps are not lost: the difference goes with the node's next contribution.  Extrapolation reaches no further
    than the interval that it was measured over, than a few steps (a longer delay makes gradient descent unstable), or
    than own steps did; beyond that, own steps count.

    Args:
        reach: how much of the movement to expect; 0: none, x ← mean.
    """

    def __init__(self, *, reach: float = 1.0) -> None:
        super().__init__()
        self._reach = reach
        self._last: tuple[Vector, int] | None = None

    def __call__(self, mean: Vector, own: Vector, drift: Vector, steps: Steps) -> Vector:  # noqa: ARG002
        last, self._last = self._last, (mean, steps.then)
        if last is None or steps.since == 0:
            return drift
        interval = steps.then - last[1]
        share = min(1.0, interval / steps.since, TRUSTED_STEPS / steps.since)
        movement = (mean - last[0]) * np.float32(self._reach * share * steps.since / interval)
        movement *= np.float32(min(1.0, share * _length(drift) / max(_length(movement), 1e-30)))
        ahead: Vector = movement + np.float32(1 - share) * drift
        self.give_back(drift - ahead)
        return ahead


class Blend(Ahead):
    """DASO (Coquelin et al., 2022): the node's own model counts twice for each step that it is ahead.

    x ← (2S·x + P·mean)/(2S + P), S the steps since the snapshot and P the number of members.
    """

    def __call__(self, mean: Vector, own: Vector, drift: Vector, steps: Steps) -> Vector:  # noqa: ARG002
        share = 2 * steps.since / (2 * steps.since + steps.members)
        blended: Vector = (own - mean) * np.float32(share)
        return blended


class Consensus(Ahead):
    """Consensus ADMM (Boyd et al., 2011): models are not replaced by what was agreed on but pulled towards it.

    z = mean(x + u); u ← u + x − z; every gradient gets ρ(x − z + u) on top.  On a shard of its own a node then
    minimises its loss plus what others would pay for going its way.

    Prices of all members add up to nothing.  Those of some of them do not, so what a node paid among others than those
    it meets next is no part of the next mean; until then it still pulls the node towards what all of them agreed on.

    Args:
        pull: ρ.
    """

    def __init__(self, *, pull: float) -> None:
        self._pull = np.float32(pull)
        self._agreed: Vector | None = None
        self._price: Vector | None = None
        self._is_of_others = False
        """Whether the price was paid among other members."""

    def __call__(self, mean: Vector, own: Vector, drift: Vector, steps: Steps) -> Vector:  # noqa: ARG002
        then: Vector = own - drift
        before = None if self._is_of_others else self._price
        self._price = then - mean if before is None else before + then - mean
        self._agreed, self._is_of_others = mean, False
        return own - mean

    def contribution(self, snapshot: Vector) -> Vector:
        return snapshot if self._price is None or self._is_of_others else snapshot + self._price

    def restart(self) -> None:
        self._is_of_others = True

    def pull(self, values: Vector) -> Vector | None:
        if self._agreed is None or self._price is None:
            return None
        pull = values - self._agreed
        pull += self._price
        pull *= self._pull
        return pull


def _length(vector: Vector) -> float:
    return float(np.linalg.norm(vector))
