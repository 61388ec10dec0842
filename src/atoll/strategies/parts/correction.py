"""Local corrections: what a node adds to its parameters after each of its own steps.

A node whose shard differs from the others' drifts away from them between rounds.  It will drift again as in the last
round, and the result of that round shows how all nodes moved together.
"""

from typing import Protocol

from atoll.vectors import Vector, times

__all__ = ["FADES", "Correction", "Uncorrected", "VarianceReduced"]


FADES = 0.9
"""The decay per step of a correction that stands for unreachable nodes: it was right when they left, and becomes less
so with every step.
"""


class Correction(Protocol):
    """One node's correction of its own steps."""

    @property
    def copies(self) -> int:
        """How many vectors it stores."""

    def step(self) -> Vector | None:
        """What to add after a step; `None`: nothing."""

    def begin(self) -> Vector | None:
        """A round begins with the current model.  Returns the part of it that the node must not contribute: the
        corrections, which sum to zero over all nodes.
        """

    def learn(self, missed: Vector) -> None:
        """Called after that round, with the mean minus the node's contribution, whose memory it takes."""

    def here(self, *, everybody: bool) -> None:
        """Called when the members of rounds have changed; `everybody`: whether all nodes are reachable."""


class Uncorrected:
    """The node's own steps, uncorrected."""

    copies = 0

    def step(self) -> Vector | None:
        return None

    def begin(self) -> Vector | None:
        return None

    def learn(self, missed: Vector) -> None:
        """There is nothing to learn."""

    def here(self, *, everybody: bool) -> None:
        """Other nodes do not matter here."""


class VarianceReduced:
    """VRL-SGD (Liang et al., 2019), in parameters instead of gradients, so that it works with any optimiser.

    Every step is corrected by the mean movement of all nodes per step in the last round, minus the node's own.  Over
    all nodes, corrections sum to zero.  They are not part of the contributions to a round: otherwise an error in one
    would stay forever, since a round cannot tell it from learned changes.

    While some nodes are unreachable, a node continues with the correction from when all were reachable.  Over the
    remaining nodes these corrections sum to an estimate of the others' part.  So a node, or a site, that is cut off
    does not follow only its own shard at once.  The estimate fades, since it gets worse with every step.
    """

    copies = 4

    def __init__(self) -> None:
        self._correction: Vector | None = None
        self._for_others: Vector | None = None
        self._steps = 0
        self._corrected = 0
        """Steps with the current correction that are not in `_added` yet."""
        self._added: Vector | None = None
        self._steps_in_round = 0

    def step(self) -> Vector | None:
        self._steps += 1
        self._corrected += self._correction is not None
        if self._for_others is not None:
            self._for_others = self._for_others * FADES
        if self._correction is None or self._for_others is None:
            return self._for_others if self._correction is None else self._correction
        return self._correction + self._for_others

    def begin(self) -> Vector | None:
        self._add_up()
        added, self._added = self._added, None
        self._steps_in_round, self._steps = self._steps, 0
        return added

    def learn(self, missed: Vector) -> None:
        if self._steps_in_round:
            self._add_up()
            self._correction = missed.div_(self._steps_in_round)

    def here(self, *, everybody: bool) -> None:
        if everybody:
            self._for_others = None
        elif self._for_others is None:
            self._for_others = self._correction
        self._correction = self._added = None
        self._corrected = 0

    def _add_up(self) -> None:
        if self._correction is not None and self._corrected:
            more = times(self._correction, self._corrected)
            self._added = more if self._added is None else self._added.add_(more)
        self._corrected = 0
