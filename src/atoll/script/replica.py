"""A user's own model and optimiser, as strategies see them."""

import math

import numpy as np
import torch
from torch import nn
from torch.optim import Optimizer

from atoll.errors import StrategyError
from atoll.exchange import Vector
from atoll.group import Group
from atoll.saved import Saved, note, part, read_note, under
from atoll.strategy import Quantity, Work
from atoll.train.memory import as_array, remember, what_is_remembered
from atoll.train.parameters import Parameters, local
from atoll.world.base import World

__all__ = ["ScriptReplica"]


class ScriptReplica:
    """One node's model and optimiser; its data is the script's.

    Args:
        world: where the node lives.
        members: all nodes of the run.
        model: what is trained.
        optimizer: what trains it.
    """

    def __init__(self, world: World, members: tuple[str, ...], model: nn.Module, optimizer: Optimizer) -> None:
        self.world = world
        self.members = members
        self.group = Group(world, members)
        self.rank = members.index(world.name)
        self.steps = 0
        self.work: Work = np.zeros(len(members), dtype=np.int64)
        self.batch_factor = 1.0
        self.changed = False
        """Whether a strategy has changed it; who has noticed sets it back."""
        self._model = model
        self._optimizer = optimizer
        self._tensors: list[torch.Tensor] = []
        self._known: Parameters | None = None

    @property
    def _parameters(self) -> Parameters:
        """The index of the model's tensors, made anew when it has others (`.to()` gives it new buffers)."""
        tensors = [*self._model.parameters(), *self._model.buffers()]
        if self._known is None or not _same(tensors, self._tensors):
            known = Parameters(self._model)
            if self._known is not None and known.size != self._known.size:
                raise StrategyError(
                    f"the model had {self._known.size} values to exchange and now has {known.size}: "
                    "freeze parameters and add layers before run.wrap()"
                )
            self._known, self._tensors = known, tensors
        return self._known

    @property
    def size(self) -> int:
        return self._parameters.size

    def stepped(self, samples: int) -> None:
        """The optimiser has made a step, with so many samples."""
        self.steps += 1
        self.work[self.rank] += samples

    # What strategies do ---

    def read(self, quantity: Quantity) -> Vector:
        return self._parameters.read_gradient() if quantity is Quantity.GRADIENT else self._parameters.read()

    def write(self, quantity: Quantity, values: Vector) -> None:
        self.changed = True
        (self._parameters.write_gradient if quantity is Quantity.GRADIENT else self._parameters.write)(values)

    def add(self, quantity: Quantity, change: Vector) -> None:
        self.changed = True
        (self._parameters.add_gradient if quantity is Quantity.GRADIENT else self._parameters.add)(change)

    def lend(self, share: float) -> bytes:  # noqa: ARG002 - as strategies call it
        raise StrategyError("a script's examples are its own: leave out what has nodes share them (inject)")

    def borrow(self, examples: bytes) -> None:
        """Of no use."""

    def scale_batch(self, factor: float) -> None:
        self.batch_factor = factor

    def include(self, work: Work) -> None:
        np.maximum(self.work, work, out=self.work)

    @property
    def loss(self) -> float:
        return math.nan  # only the script knows

    def memory(self) -> Saved:
        return what_is_remembered(self._optimizer)

    def take_over(self, work: Work, memory: Saved) -> None:
        self.include(work)
        if memory:
            remember(self._optimizer, memory)

    # What checkpoints hold ---

    def save(self) -> Saved:
        return {
            **under("model", {name: as_array(value) for name, value in self._model.state_dict().items()}),
            **under("optimizer", self.memory()),
            "work": self.work.copy(),
            "steps": note(self.steps),
            "world": np.frombuffer(self.world.save(), dtype=np.uint8),
        }

    def load(self, saved: Saved) -> None:
        values = part("model", saved)
        with torch.no_grad():
            for name, tensor in self._model.state_dict().items():
                here = local(tensor)
                here.copy_(torch.from_numpy(values[name]).view(here.shape))
        remember(self._optimizer, part("optimizer", saved))
        self.work[:] = saved["work"]
        self.steps = int(read_note(saved["steps"]))
        self.world.load(saved["world"].tobytes())


def _same(some: list[torch.Tensor], others: list[torch.Tensor]) -> bool:
    return len(some) == len(others) and all(one is other for one, other in zip(some, others, strict=True))
