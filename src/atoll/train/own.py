"""What every node's own model has in common, whoever trains it: a task, or a user's script."""

import abc

import numpy as np
import torch
from torch import nn
from torch.optim import Optimizer

from atoll.exchange import Vector
from atoll.group import Group
from atoll.saved import Saved, note, part, read_note, under
from atoll.strategy import Quantity, Work
from atoll.train.memory import as_array, remember, what_is_remembered
from atoll.train.parameters import Parameters, local
from atoll.world.base import World

__all__ = ["OwnReplica"]


class OwnReplica(abc.ABC):
    """One node's model and optimiser, as strategies see them.

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
        self.model = model
        self.optimizer = optimizer

    @property
    @abc.abstractmethod
    def _parameters(self) -> Parameters:
        """The index of the model's tensors."""

    @property
    def size(self) -> int:
        return self._parameters.size

    # What strategies do ---

    def read(self, quantity: Quantity) -> Vector:
        return self._parameters.read_gradient() if quantity is Quantity.GRADIENT else self._parameters.read()

    def write(self, quantity: Quantity, values: Vector) -> None:
        (self._parameters.write_gradient if quantity is Quantity.GRADIENT else self._parameters.write)(values)

    def add(self, quantity: Quantity, change: Vector) -> None:
        (self._parameters.add_gradient if quantity is Quantity.GRADIENT else self._parameters.add)(change)

    def scale_batch(self, factor: float) -> None:
        self.batch_factor = factor

    def include(self, work: Work) -> None:
        np.maximum(self.work, work, out=self.work)

    def memory(self) -> Saved:
        return what_is_remembered(self.optimizer)

    def take_over(self, work: Work, memory: Saved) -> None:
        self.include(work)
        if memory:
            remember(self.optimizer, memory)

    # What checkpoints hold ---

    def save(self) -> Saved:
        return {
            **under("model", {name: as_array(value) for name, value in self.model.state_dict().items()}),
            **under("optimizer", self.memory()),
            "work": self.work.copy(),
            "steps": note(self.steps),
            "world": np.frombuffer(self.world.save(), dtype=np.uint8),
        }

    def load(self, saved: Saved) -> None:
        values = part("model", saved)
        with torch.no_grad():
            for name, tensor in self.model.state_dict().items():
                here = local(tensor)
                here.copy_(torch.from_numpy(values[name]).view(here.shape))
        remember(self.optimizer, part("optimizer", saved))
        self.work[:] = saved["work"]
        self.steps = int(read_note(saved["steps"]))
        self.world.load(saved["world"].tobytes())
