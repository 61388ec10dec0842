"""How a node applies a late mean: while the round was in progress, its members continued to train.

A part holds one node's state.  It receives every mean that the node applies, and returns what to add to it.
"""

import abc
from typing import NamedTuple

from atoll.vectors import Vector, length, used_here

__all__ = ["Ahead", "Blend", "Consensus", "FirstSteps", "OwnSteps", "SharedSteps", "Steps"]


TRUSTED_STEPS = 4


class Steps(NamedTuple):
    """A node's own step counts."""

    then: int
    """The step at which the snapshot was taken."""
    since: int
    """The number of steps since then."""
    members: int = 1
    """How many nodes the run has."""


class Ahead(abc.ABC):
    """What a node adds to a late mean, and what it contributes to the next."""

    adds = False
    """Whether it adds exactly the change of the node's own steps: the mean then comes as a change too."""

    @abc.abstractmethod
    def __call__(self, mean: Vector, own: Vector, drift: Vector, steps: Steps) -> Vector:
        """What to add to `mean`.

        Args:
            mean: the result of a round.
            own: the node's model now.
            drift: the change by the node's own steps since the snapshot.
            steps: the step of the snapshot, and the number of steps since.
        """

    def contribution(self, snapshot: Vector) -> Vector:
        """The contribution of a node whose model is `snapshot` to the round that it begins."""
        return snapshot

    def give_back(self, kept: Vector) -> None:  # noqa: B027 - most keep nothing
        """Called when a round is abandoned: the part of its contribution beyond the snapshot goes into the next."""

    def restart(self) -> None:  # noqa: B027 - most know of no members
        """Called when the members of rounds have changed."""

    @property
    def unused(self) -> Vector | None:
        """The part of the node's own steps that goes into its next contribution; `None`: nothing."""
        return None

    @property
    def pulls(self) -> bool:
        """Whether it changes gradients."""
        return type(self).pull is not Ahead.pull

    def pull(self, values: Vector) -> Vector | None:  # noqa: ARG002 - for subclasses that pull
        """What to add to the gradient at every step; `None`: nothing."""
        return None


class OwnSteps(Ahead):
    """The node's own steps: x ← mean + (x − snapshot)."""

    adds = True

    def __call__(self, mean: Vector, own: Vector, drift: Vector, steps: Steps) -> Vector:  # noqa: ARG002 - the shape
        return drift


class _Keeping(Ahead):
    """The unused part of a node's own steps goes into its next contribution."""

    def __init__(self) -> None:
        self._kept: Vector | None = None

    @property
    def unused(self) -> Vector | None:
        return self._kept

    def contribution(self, snapshot: Vector) -> Vector:
        kept, self._kept = self._kept, None
        return snapshot if kept is None else snapshot + used_here(kept)

    def give_back(self, kept: Vector) -> None:
        self._kept = kept if self._kept is None else used_here(self._kept) + used_here(kept)


class FirstSteps(_Keeping):
    """The node's own steps, scaled down to a few steps if there are more.

    The rest goes into the next contribution.
    """

    def __call__(self, mean: Vector, own: Vector, drift: Vector, steps: Steps) -> Vector:  # noqa: ARG002
        if steps.since <= TRUSTED_STEPS:
            return drift
        ahead = drift * (TRUSTED_STEPS / steps.since)
        self.give_back(drift - ahead)
        return ahead


class SharedSteps(_Keeping):
    """Extrapolates the mean movement of all nodes: x ← mean + steps · (mean − last mean)/interval.

    A node's own steps are noisy, and biased on a shard of one label; the movement of all nodes together is neither.
    Own steps are not lost: the difference goes into the node's next contribution.  The extrapolation is at most as long
    as the interval that it was measured over, as a few steps (a longer delay makes gradient descent unstable), and as
    the own steps; beyond that, own steps count.

    Args:
        reach: the share of the movement to extrapolate; 0: none, x ← mean.
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
        movement = (mean - last[0]) * (self._reach * share * steps.since / interval)
        movement *= min(1.0, share * length(drift) / max(length(movement), 1e-30))
        ahead = movement + (1 - share) * drift
        self.give_back(drift - ahead)
        return ahead


class Blend(Ahead):
    """DASO (Coquelin et al., 2022): the node's own model counts twice for each step that it is ahead.

    x ← (2S·x + P·mean)/(2S + P), S the steps since the snapshot and P the number of members.
    """

    def __call__(self, mean: Vector, own: Vector, drift: Vector, steps: Steps) -> Vector:  # noqa: ARG002
        share = 2 * steps.since / (2 * steps.since + steps.members)
        return (own - mean) * share


class Consensus(Ahead):
    """Consensus ADMM (Boyd et al., 2011): models are not replaced by the consensus but pulled towards it.

    z = mean(x + u); u ← u + x − z; every gradient gets ρ(x − z + u) added.  With a shard of its own, a node then
    minimises its loss plus a price u for its distance from the others.

    The prices of all members sum to zero.  Those of a subset do not.  So when the members change, the next mean leaves
    out a node's old price; until that mean arrives, the old price still pulls the node towards the old consensus.

    Args:
        pull: ρ.
    """

    def __init__(self, *, pull: float) -> None:
        self._pull = pull
        self._agreed: Vector | None = None
        self._price: Vector | None = None
        self._is_of_others = False
        """Whether the price is from rounds with other members."""

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
