"""The interface through which a strategy reads its node's state and changes its model.

Strategies see vectors, never modules.  Everything here happens at step boundaries: between the gradient and the update,
or after the update; so only training touches parameters, and a strategy never sees half a step.
"""

import enum
from collections.abc import Callable, Sequence
from typing import Protocol, TypeVar

import numpy as np
import torch
from numpy.typing import NDArray

from atoll.membership import Group
from atoll.state import Saved
from atoll.vectors import WHOLE, Vector
from atoll.world.base import World

__all__ = ["BLOCK_VALUES", "MOST_WORK", "Quantity", "Replica", "Work", "block_values"]

T = TypeVar("T")
Work = NDArray[np.int64]
"""How many samples of each member a model state includes, by the members' order."""
BLOCK_VALUES = 1 << 20
"""How many values a block of a small model has: few enough to stay in a cache, and to be sent while others are encoded.
"""
MOST_BLOCK_VALUES = 1 << 23
BLOCKS = 16
"""How many blocks a larger model has, unless they would be too large: each takes some Python and some waiting for a
GPU, whatever its size.
"""
BLOCK_UNIT = 4096
"""Blocks are a multiple of what codecs look at together."""
MOST_WORK = 1 << 53
"""No node can have done more."""


def block_values(size: int) -> int:
    """How many values a block has at most, in a model of `size` values; the same on all nodes."""
    wanted = -(-size // (BLOCKS * BLOCK_UNIT)) * BLOCK_UNIT
    return min(max(BLOCK_VALUES, wanted), MOST_BLOCK_VALUES)


class Quantity(enum.Enum):
    """The quantity that is exchanged."""

    PARAMETERS = "parameters"
    GRADIENT = "gradient"
    BUFFERS = "buffers"
    """Batch-norm statistics and the like: always averaged plainly."""


class Replica(Protocol):
    """One node's model, as strategies see it."""

    @property
    def world(self) -> World: ...

    @property
    def group(self) -> Group:
        """The reachable members."""

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
    def device(self) -> torch.device:
        """Where the model's vectors are."""

    @property
    def block_values(self) -> int:
        """How many values a block of its model has at most; the same on all nodes."""

    @property
    def steps(self) -> int:
        """Training steps that this node has done."""

    @property
    def work(self) -> Work:
        """The work that the model includes."""

    async def touch(self, work: Callable[[], T]) -> T:
        """Runs `work`, which reads or changes the model, at a step boundary: beside the event loop; or at once if a GPU
        does it, and only has to be told.
        """

    def read(self, quantity: Quantity, span: slice = WHOLE) -> Vector:
        """A copy of all parameters, of their gradients, or of all buffers, as one vector; or of a span of them."""

    def read_blocks(self, spans: Sequence[slice]) -> list[Vector]:
        """A copy of each of several spans of the parameters; they may share memory, which is free when none is used."""

    def write(self, quantity: Quantity, values: Vector, span: slice = WHOLE) -> None:
        """Replaces all parameters, their gradients, or all buffers; or a span of the parameters."""

    def add(self, quantity: Quantity, change: Vector, span: slice = WHOLE) -> None:
        """Adds to all parameters, or to their gradients; or to a span of the parameters."""

    def add_blocks(self, changes: Sequence[tuple[slice, Vector]]) -> None:
        """Adds to several spans of the parameters."""

    def lend(self, share: float) -> bytes:
        """A share of the last batch's examples, for other nodes to train on too."""

    def borrow(self, examples: bytes) -> None:
        """Puts another node's examples into the next batch; an `ExamplesRefused` error if they are unusable."""

    def scale_batch(self, factor: float) -> None:
        """Scales the number of own examples in batches from now on."""

    def include(self, work: Work) -> None:
        """Records that the model now includes this work too."""

    @property
    def loss(self) -> float:
        """The node's own loss, estimated on its last batches; NaN while it is unknown."""

    def memory(self) -> Saved:
        """The optimiser state, to be sent to a new node."""

    @property
    def global_step(self) -> int:
        """The run's step: the progress of the model over all nodes."""

    def take_over(self, work: Work, memory: Saved, steps: int) -> None:
        """Called when the node has taken over a peer's model.

        Args:
            work: the work that it includes; the work of this node's own earlier model is not part of it.
            memory: the peer's optimiser state, if it was requested.
            steps: the run's step.
        """
