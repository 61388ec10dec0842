"""What a strategy may know of its node and do to its model.

Strategies see vectors, never modules.  Everything here happens at step boundaries: between the gradient and the update,
or after the update; so only training touches parameters, and a strategy never sees half a step.
"""

import enum
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from atoll.membership import Group
from atoll.state import Saved
from atoll.vectors import Vector
from atoll.world.base import World

__all__ = ["BLOCK_VALUES", "MOST_WORK", "Quantity", "Replica", "Work"]

Work = NDArray[np.int64]
"""How many samples of each member a model state includes, by the members' order."""
BLOCK_VALUES = 1 << 20
"""How many values a block of a model has at most: few enough to stay in a cache, and to be sent while others are
encoded.
"""
MOST_WORK = 1 << 53
"""No node can have done more."""


class Quantity(enum.Enum):
    """What is exchanged."""

    PARAMETERS = "parameters"
    GRADIENT = "gradient"
    BUFFERS = "buffers"
    """Batch-norm statistics and the like: averaged plainly, whatever is done to the rest."""


class Replica(Protocol):
    """One node's model, as strategies see it."""

    @property
    def world(self) -> World: ...

    @property
    def group(self) -> Group:
        """Who is here."""

    @property
    def members(self) -> tuple[str, ...]:
        """All nodes of the run, this one included, in the order that all of them use."""

    @property
    def rank(self) -> int:
        """This node's place among the members."""

    @property
    def size(self) -> int:
        """How many parameters the model has."""

    @property
    def block_values(self) -> int:
        """How many values a block of its model has at most; the same on all nodes."""

    @property
    def steps(self) -> int:
        """Training steps that this node has done."""

    @property
    def work(self) -> Work:
        """What the model includes."""

    def read(self, quantity: Quantity) -> Vector:
        """A copy of all parameters, of their gradients, or of all buffers, as one vector."""

    def write(self, quantity: Quantity, values: Vector) -> None:
        """Replaces all parameters, their gradients, or all buffers."""

    def add(self, quantity: Quantity, change: Vector) -> None:
        """Adds to all parameters, or to their gradients."""

    def lend(self, share: float) -> bytes:
        """Examples of the last batch, this share of it, for others to learn from too."""

    def borrow(self, examples: bytes) -> None:
        """Puts another node's examples into the next batch; an `ExamplesRefused` error if they are of no use."""

    def scale_batch(self, factor: float) -> None:
        """From now on batches have this much of their own examples."""

    def include(self, work: Work) -> None:
        """The model now includes this work too."""

    @property
    def loss(self) -> float:
        """What the node's own loss is on its last batches, about; not a number while that is not known."""

    def memory(self) -> Saved:
        """What the optimiser remembers, to be handed to a node that is new."""

    @property
    def global_step(self) -> int:
        """The run's step: how far the model has come, on whichever nodes."""

    def take_over(self, work: Work, memory: Saved, steps: int) -> None:
        """The model was handed over by a peer.

        Args:
            work: what it includes; what this node's own model included before is no part of it.
            memory: what the peer's optimiser remembers, if that was asked for.
            steps: the run's step.
        """
