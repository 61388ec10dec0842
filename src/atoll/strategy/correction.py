"""Local corrections: what a node adds to its parameters after each of its own steps.

A node whose shard is unlike the others' drifts its own way between rounds.  Where it has drifted before, it will drift
again, and what all did together then is known.
"""

from typing import Protocol

import numpy as np

from atoll.exchange import Vector

__all__ = ["Correction", "Uncorrected", "VarianceReduced"]


class Correction(Protocol):
    """One node's correction of its own steps."""

    def step(self) -> Vector | None:
        """What to add after a step; `None`: nothing."""

    def begin(self) -> None:
        """A round begins with the model as it is."""

    def learn(self, missed: Vector) -> None:
        """That round is done, and this is the mean less what the node gave."""


class Uncorrected:
    """The node's own steps as they are."""

    def step(self) -> Vector | None:
        return None

    def begin(self) -> None:
        """There is nothing to count."""

    def learn(self, missed: Vector) -> None:
        """There is nothing to learn."""


class VarianceReduced:
    """VRL-SGD (Liang et al., 2019), in parameters instead of gradients, so that it goes with any optimiser.

    Every step is corrected by what all moved a step, less what the own steps alone did, over the last round:
    c ← c + (mean − own)/steps, where c is what was added a step in that round.  Over all nodes corrections add up to
    nothing.  In rounds of some of them what theirs add up to stays as it was: it stands for those who are away, and a
    node, or a site, that is cut off stays near what all agreed on instead of following its own shard.
    """

    def __init__(self) -> None:
        self._correction: Vector | None = None
        self._added: Vector | None = None
        self._steps = 0
        self._in_round: tuple[Vector | None, int] = None, 0

    def step(self) -> Vector | None:
        self._steps += 1
        if self._correction is not None:
            self._added = self._correction if self._added is None else self._added + self._correction
        return self._correction

    def begin(self) -> None:
        self._in_round = self._added, self._steps
        self._added, self._steps = None, 0

    def learn(self, missed: Vector) -> None:
        added, steps = self._in_round
        if steps:
            self._correction = (missed if added is None else missed + added) / np.float32(steps)
