"""The base of every node's own model, trained by a task or by a user's script."""

import abc
from collections.abc import Callable, Sequence
from typing import TypeVar

import numpy as np
import torch
from torch import nn
from torch.optim import Optimizer

from atoll.errors import CheckpointError
from atoll.membership import Group
from atoll.state import Saved, note, read_note, section, under
from atoll.strategies import Quantity, Work
from atoll.strategies.replica import block_values
from atoll.training.optimizer_state import as_array, remember, what_is_remembered
from atoll.training.parameters import Parameters, local
from atoll.vectors import WHOLE, Vector
from atoll.world.base import World

__all__ = ["OwnReplica"]

T = TypeVar("T")


class OwnReplica(abc.ABC):
    """One node's model and optimiser, as strategies see them.

    Args:
        world: the node's world.
        members: all nodes of the run.
        model: the model.
        optimizers: its optimisers.
    """

    def __init__(
        self, world: World, members: tuple[str, ...], model: nn.Module, optimizers: Sequence[Optimizer]
    ) -> None:
        self.world = world
        self.members = members
        self.group = Group(world, members)
        self.rank = members.index(world.name)
        self.steps = 0
        self.work: Work = np.zeros(len(members), dtype=np.int64)
        self.batch_factor = 1.0
        self.model = model
        self.optimizers = tuple(optimizers)
        self._steps_before = 0
        """How many steps the model had when this node received it, beyond the node's own."""

    @property
    @abc.abstractmethod
    def _parameters(self) -> Parameters:
        """The index of the model's tensors."""

    @property
    def size(self) -> int:
        return self._parameters.size

    @property
    def block_values(self) -> int:
        return block_values(self.size)

    @property
    def device(self) -> torch.device:
        return self._parameters.device

    @property
    def global_step(self) -> int:
        """How many steps the model has had: the node's own, and those before the node received it."""
        return self._steps_before + self.steps

    # For strategies ---

    async def touch(self, work: Callable[[], T]) -> T:
        return await self.world.offload(work, values=self.size)

    def read(self, quantity: Quantity, span: slice = WHOLE) -> Vector:
        index = self._parameters
        if quantity is Quantity.PARAMETERS:
            return index.read(span)
        return (index.read_gradient() if quantity is Quantity.GRADIENT else index.read_buffers())[span]

    def read_blocks(self, spans: Sequence[slice]) -> list[Vector]:
        return self._parameters.read_each(spans)

    def write(self, quantity: Quantity, values: Vector, span: slice = WHOLE) -> None:
        index = self._parameters
        if quantity is Quantity.PARAMETERS:
            index.write(values, span)
        else:
            (index.write_gradient if quantity is Quantity.GRADIENT else index.write_buffers)(values)

    def add(self, quantity: Quantity, change: Vector, span: slice = WHOLE) -> None:
        if quantity is Quantity.PARAMETERS:
            self.add_blocks([(span, change)])
        else:
            self._parameters.add_gradient(change)

    def add_blocks(self, changes: Sequence[tuple[slice, Vector]]) -> None:
        self._parameters.add_each(changes)

    def scale_batch(self, factor: float) -> None:
        self.batch_factor = factor

    def include(self, work: Work) -> None:
        np.maximum(self.work, work, out=self.work)

    def memory(self) -> Saved:
        return what_is_remembered(*self.optimizers)

    def take_over(self, work: Work, memory: Saved, steps: int) -> None:
        self.work[:] = work
        self._steps_before = max(self._steps_before, steps - self.steps)
        if memory:
            remember(self.optimizers, memory)

    # Checkpoints ---

    def save(self) -> Saved:
        return {
            **under("model", {name: as_array(value) for name, value in self.model.state_dict().items()}),
            **under("optimizer", self.memory()),
            "work": self.work.copy(),
            "steps": note(self.steps),
            "steps before": note(self._steps_before),
            "world": np.frombuffer(self.world.save(), dtype=np.uint8),
        }

    def load(self, saved: Saved) -> None:
        values = section("model", saved)
        self._refuse_another_model(values)
        with torch.no_grad():
            for name, tensor in self.model.state_dict().items():
                here = local(tensor)
                here.copy_(torch.from_numpy(values[name]).view(here.shape))
        remember(self.optimizers, section("optimizer", saved))
        self._include_all(saved["work"])
        self.steps = int(read_note(saved["steps"]))
        self._steps_before = int(read_note(saved["steps before"])) if "steps before" in saved else 0
        self.world.load(saved["world"].tobytes())

    def _refuse_another_model(self, values: Saved) -> None:
        here = {name: tuple(local(tensor).shape) or (1,) for name, tensor in self.model.state_dict().items()}
        there = {name: value.shape or (1,) for name, value in values.items()}
        for name in [*here, *there]:
            if here.get(name) != there.get(name):
                shapes = [str(shape) if shape is not None else "missing" for shape in (there.get(name), here.get(name))]
                raise CheckpointError(f"is of another model: {name!r} is {shapes[0]} there, and {shapes[1]} here")

    def _include_all(self, work: Work) -> None:
        """Work is counted by seat; the work of a run with other seats counts as this node's."""
        self.work[:] = 0
        if len(work) == len(self.work):
            self.work[:] = work
        else:
            self.work[self.rank] = work.sum()
