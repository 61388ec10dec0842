"""A user's own model and optimiser, as strategies see them."""

import math
from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from typing import Protocol, TypeVar

import torch
from torch import nn
from torch.optim import Optimizer

from atoll.errors import StrategyError
from atoll.state import Saved
from atoll.strategies import Quantity, Work
from atoll.training.own import OwnReplica
from atoll.training.parameters import Parameters, Tensors
from atoll.training.streams import Streams
from atoll.vectors import WHOLE, Vector
from atoll.world.base import World

__all__ = ["ScriptReplica"]

T = TypeVar("T")
FEW_VALUES = 1 << 15
"""Smaller models are read and changed at once, in the thread that asks: faster than another thread."""


class InScript(Protocol):
    """Runs work in the script's thread."""

    def __call__(self, work: Callable[[], T]) -> Awaitable[T]: ...


class ScriptReplica(OwnReplica):
    """One node's model and optimiser; its data is the script's.

    Args:
        world: the node's world.
        members: all nodes of the run.
        model: the model.
        optimizers: its optimisers.
        in_script: runs work in the script's thread, which waits meanwhile.
    """

    def __init__(
        self,
        world: World,
        members: tuple[str, ...],
        model: nn.Module,
        optimizers: Sequence[Optimizer],
        *,
        in_script: InScript,
    ) -> None:
        super().__init__(world, members, model, optimizers)
        self._in_script = in_script
        self.changed = False
        """Whether a strategy has changed the model; the reader resets it."""
        self.remembers_anew = False
        """Whether its optimiser received another node's state; the reader resets it."""
        self._tensors: Tensors | None = None
        self._known: Parameters | None = None
        self._at_boundary: Parameters | None = None
        """The index during work at a step boundary: nothing changes the tensors then."""
        self._size, self._device = self._parameters.size, self._parameters.device
        self.streams = Streams(self._device)

    @property
    def size(self) -> int:
        return self._size

    @property
    def device(self) -> torch.device:
        return self._device

    @property
    def _parameters(self) -> Parameters:
        """The index of the model's tensors, made again when the tensors change (`.to()` makes new buffers).  Between
        step boundaries they may be anything: FSDP2 puts whole tensors in the place of shards.
        """
        if self._at_boundary is not None:
            return self._at_boundary
        if self._known is None or self._tensors is None or not self._tensors.are_there:
            known = Parameters(self.model)
            if self._known is not None and known.size != self._known.size:
                raise StrategyError(
                    f"the model had {self._known.size} values to exchange and now has {known.size}: "
                    "freeze parameters and add layers before run.wrap()"
                )
            if self._known is not None and known.device != self._known.device:
                raise StrategyError(
                    f"the model was on {self._known.device} and now is on {known.device}: move it before run.wrap()"
                )
            self._known, self._tensors = known, Tensors(self.model)
        return self._known

    def stepped(self, samples: int) -> None:
        """Counts a step of the optimiser, with its samples."""
        self.steps += 1
        self.work[self.rank] += samples

    # For strategies ---

    async def touch(self, work: Callable[[], T]) -> T:
        if self.device.type == "cpu" and self.size < FEW_VALUES:
            return work()
        return await self._in_script(lambda: self.streams.at_boundary(partial(self._with_index, work)))

    def _with_index(self, work: Callable[[], T]) -> T:
        self._at_boundary = self._parameters
        try:
            return work()
        finally:
            self._at_boundary = None

    def read(self, quantity: Quantity, span: slice = WHOLE) -> Vector:
        return self.streams.shared(super().read(quantity, span))

    def read_blocks(self, spans: Sequence[slice]) -> list[Vector]:
        found = super().read_blocks(spans)
        self.streams.shared(found[0])  # they share memory
        return found

    def write(self, quantity: Quantity, values: Vector, span: slice = WHOLE) -> None:
        self.changed = True
        super().write(quantity, values, span)

    def add(self, quantity: Quantity, change: Vector, span: slice = WHOLE) -> None:
        self.changed = True
        super().add(quantity, change, span)

    def add_blocks(self, changes: Sequence[tuple[slice, Vector]]) -> None:
        self.changed = True
        super().add_blocks(changes)

    def lend(self, share: float) -> bytes:  # noqa: ARG002 - as strategies call it
        raise StrategyError("a script's examples are its own: choose a strategy without lenders")

    def borrow(self, examples: bytes) -> None:
        """Does nothing: a script's examples are its own."""

    @property
    def loss(self) -> float:
        return math.nan  # only the script knows

    def take_over(self, work: Work, memory: Saved, steps: int) -> None:
        super().take_over(work, memory, steps)
        self.remembers_anew = bool(memory)

    def load(self, saved: Saved) -> None:
        super().load(saved)
        self.changed = True
