"""A range of layers: as strategies see it, and as it is sent from one node to another."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import nn
from torch.optim import Optimizer

from atoll.errors import TaskError
from atoll.state import Saved, note, read_note
from atoll.strategies import Quantity, Work
from atoll.training.optimizer_state import remember, what_is_remembered
from atoll.training.own import OwnReplica
from atoll.training.parameters import Parameters
from atoll.vectors import WHOLE, Vector
from atoll.world.base import World

__all__ = ["Held", "Layers", "SpanReplica", "drop_gradients", "fill", "layers_in", "tensors_of", "updates_in"]


@dataclass(slots=True, eq=False)
class Held:
    """A layer and its optimiser."""

    module: nn.Module
    optimizer: Optimizer | None
    updates: int = 0
    """How many updates it has had."""


Layers = Mapping[int, Held]
"""Layers by index in the chain."""


class SpanReplica(OwnReplica):
    """A range of layers, as strategies see it: the model that a node shares with its peers in other islands.

    Args:
        world: the world of its exchange.
        members: the members of the exchange.
        layers: the layers of the range.
        optimizers: the optimisers of its layers that have parameters, by index in the chain.
        loss: returns the island's loss.
        before_change: called before weights are replaced: batches in flight may need the old ones.
    """

    def __init__(
        self,
        world: World,
        members: tuple[str, ...],
        layers: nn.Module,
        optimizers: dict[int, Optimizer],
        *,
        loss: Callable[[], float],
        before_change: Callable[[], None],
    ) -> None:
        super().__init__(world, members, layers, [*optimizers.values()])
        self._index = Parameters(layers)
        self._optimizers = optimizers
        self._loss = loss
        self._before_change = before_change

    @property
    def _parameters(self) -> Parameters:
        return self._index

    @property
    def loss(self) -> float:
        return self._loss()

    def write(self, quantity: Quantity, values: Vector, span: slice = WHOLE) -> None:
        if quantity is Quantity.PARAMETERS:
            self._before_change()
        super().write(quantity, values, span)

    def add_blocks(self, changes: Sequence[tuple[slice, Vector]]) -> None:
        self._before_change()
        super().add_blocks(changes)

    def memory(self) -> Saved:
        return {
            f"{layer}/{key}": value
            for layer, optimizer in self._optimizers.items()
            for key, value in what_is_remembered(optimizer).items()
        }

    def take_over(self, work: Work, memory: Saved, steps: int) -> None:
        super().take_over(work, {}, steps)
        for layer, optimizer in self._optimizers.items():
            own = {key.split("/", 1)[1]: value for key, value in memory.items() if key.startswith(f"{layer}/")}
            if own:
                remember([optimizer], own)

    def save(self) -> Saved:
        """The state of the range itself; layers are saved by their holder."""
        return {"work": self.work.copy(), "steps": note(self.steps)}

    def load(self, saved: Saved) -> None:
        self.work[:] = saved["work"]
        self.steps = int(read_note(saved["steps"]))

    def lend(self, share: float) -> bytes:
        raise TaskError(f"islands cannot lend examples ({share:g} of a batch): choose a strategy without injection")

    def borrow(self, examples: bytes) -> None:
        raise TaskError(f"islands cannot borrow examples ({len(examples)} bytes)")


def tensors_of(layers: Layers) -> dict[str, torch.Tensor]:
    """Copies of weights, buffers, and optimiser state."""
    tensors: dict[str, torch.Tensor] = {}
    for layer, held in layers.items():
        tensors[f"{layer}/updates"] = torch.tensor(held.updates)
        for name, value in held.module.state_dict().items():
            tensors[f"{layer}/model/{name}"] = value.detach().cpu().contiguous().clone()
        if held.optimizer:
            for name, remembered in what_is_remembered(held.optimizer).items():
                tensors[f"{layer}/optimizer/{name}"] = torch.from_numpy(remembered)
    return tensors


def drop_gradients(layers: Layers) -> None:
    """Drops the gradients of earlier batches."""
    for held in layers.values():
        held.module.zero_grad()


def layers_in(tensors: dict[str, torch.Tensor]) -> list[int]:
    """The layers that these tensors belong to."""
    return sorted(int(name.partition("/")[0]) for name in tensors if name.endswith("/updates"))


def updates_in(tensors: dict[str, torch.Tensor], layer: int) -> int:
    return int(tensors[f"{layer}/updates"])


def fill(layers: Layers, tensors: dict[str, torch.Tensor]) -> bool:
    """Puts tensors into layers; returns `False`, without changes, if some are missing or malformed."""
    memories = {layer: _memory(tensors, f"{layer}/optimizer/") for layer in layers}
    for layer, held in layers.items():
        wanted = {f"{layer}/model/{name}": value.shape for name, value in held.module.state_dict().items()}
        if any(name not in tensors or tensors[name].shape != shape for name, shape in wanted.items()):
            return False
        if not all(torch.isfinite(tensors[name]).all() for name in wanted):
            return False
        if f"{layer}/updates" not in tensors or tensors[f"{layer}/updates"].numel() != 1:
            return False
        if held.optimizer and not _fits(memories[layer], held.optimizer):
            return False
    with torch.no_grad():
        for layer, held in layers.items():
            held.updates = updates_in(tensors, layer)
            for name, value in held.module.state_dict().items():
                value.copy_(tensors[f"{layer}/model/{name}"])
            if held.optimizer and memories[layer]:
                remember([held.optimizer], memories[layer])
    return True


def _memory(tensors: dict[str, torch.Tensor], prefix: str) -> Saved:
    return {key.removeprefix(prefix): each.numpy() for key, each in tensors.items() if key.startswith(prefix)}


def _fits(memory: Saved, optimizer: Optimizer) -> bool:
    """Whether it may be the state of an optimiser of these parameters: tensors of their shapes, or single numbers."""
    parameters = [each for group in optimizer.param_groups for each in group["params"]]
    for key, value in memory.items():
        place = key.split("/", 1)[0]
        if not place.isdigit() or int(place) >= len(parameters) or not np.isfinite(value).all():
            return False
        if value.size != 1 and value.shape != tuple(parameters[int(place)].shape):
            return False
    return True
