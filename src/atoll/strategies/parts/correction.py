"""Local corrections: what a node adds to its parameters after each of its own steps.

A node whose shard is unlike the others' drifts its own way between rounds.  Where it has drifted before, it will drift
again, and what all did together then is known.
"""

from typing import Protocol

import numpy as np

from atoll.vectors import Vector

__all__ = ["FADES", "Correction", "Uncorrected", "VarianceReduced"]


FADES = np.float32(0.9)
"""What is left after a step of a correction that stands for nodes that are away: it was right where they left, and is
less so with every step from there.
"""


class Correction(Protocol):
    """One node's correction of its own steps."""

    def step(self) -> Vector | None:
        """What to add after a step; `None`: nothing."""

    def begin(self) -> Vector | None:
        """A round begins with the model as it is.  Returns what of it is not the node's to give: corrections that
        others' cancel.
        """

    def learn(self, missed: Vector) -> None:
        """That round is done, and this is the mean less what the node gave."""

    def here(self, *, everybody: bool) -> None:
        """Rounds are among others from now on; whether nobody is away."""


class Uncorrected:
    """The node's own steps as they are."""

    def step(self) -> Vector | None:
        return None

    def begin(self) -> Vector | None:
        return None

    def learn(self, missed: Vector) -> None:
        """There is nothing to learn."""

    def here(self, *, everybody: bool) -> None:
        """It is about nobody else."""


class VarianceReduced:
    """VRL-SGD (Liang et al., 2019), in parameters instead of gradients, so that it goes with any optimiser.

    Every step is corrected by what all moved a step over the last round, less what the own steps did.  Over all nodes
    corrections add up to nothing.  They are kept out of what nodes give to a round: an error in one would otherwise
    stay for good, since a round cannot tell it from what was learned.

    While some are away, what a node corrected when all were here goes on: over those who are left it adds up to what
    stands for the others.  A node, or a site, that is cut off then does not follow its own shard at once.  It fades:
    the more steps are made without the others, the less is known of where they would have led.
    """

    def __init__(self) -> None:
        self._correction: Vector | None = None
        self._for_others: Vector | None = None
        self._steps = 0
        self._added: Vector | None = None
        self._steps_in_round = 0

    def step(self) -> Vector | None:
        self._steps += 1
        if self._correction is not None:
            self._added = self._correction if self._added is None else self._added + self._correction
        if self._for_others is not None:
            self._for_others = self._for_others * FADES
        if self._correction is None or self._for_others is None:
            return self._for_others if self._correction is None else self._correction
        return self._correction + self._for_others

    def begin(self) -> Vector | None:
        added, self._added = self._added, None
        self._steps_in_round, self._steps = self._steps, 0
        return added

    def learn(self, missed: Vector) -> None:
        if self._steps_in_round:
            self._correction = missed / np.float32(self._steps_in_round)

    def here(self, *, everybody: bool) -> None:
        if everybody:
            self._for_others = None
        elif self._for_others is None:
            self._for_others = self._correction
        self._correction = self._added = None
