"""A range of layers: as strategies see it, and on its way from one node to another."""

from collections.abc import Callable, Mapping

import numpy as np
import safetensors.torch
import torch
from torch import nn
from torch.optim import Optimizer

from atoll.errors import TaskError
from atoll.exchange import Vector
from atoll.island import read_tensors
from atoll.saved import Saved
from atoll.strategy import Quantity, Work
from atoll.train.memory import remember, what_is_remembered
from atoll.train.own import OwnReplica
from atoll.train.parameters import Parameters
from atoll.world.base import World

__all__ = ["Held", "Layers", "SpanReplica", "fill", "packed"]

Held = tuple[nn.Module, Optimizer | None]
"""A layer, and what changes it."""
Layers = Mapping[int, Held]
"""By place in the chain."""


class SpanReplica(OwnReplica):
    """A range of layers, as strategies see it: the model that a node and its peers in other islands have in common.

    Args:
        world: where its exchange takes place.
        members: who takes part.
        layers: of the range.
        optimizers: of its layers that have parameters, by place in the chain.
        loss: what the island's loss is.
        before_change: called before weights are replaced: batches on their way may need the old ones.
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
        super().__init__(world, members, layers, next(iter(optimizers.values())))
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

    def write(self, quantity: Quantity, values: Vector) -> None:
        if quantity is Quantity.PARAMETERS:
            self._before_change()
        super().write(quantity, values)

    def add(self, quantity: Quantity, change: Vector) -> None:
        if quantity is Quantity.PARAMETERS:
            self._before_change()
        super().add(quantity, change)

    def memory(self) -> Saved:
        return {
            f"{layer}/{key}": value
            for layer, optimizer in self._optimizers.items()
            for key, value in what_is_remembered(optimizer).items()
        }

    def take_over(self, work: Work, memory: Saved) -> None:
        self.include(work)
        for layer, optimizer in self._optimizers.items():
            own = {key.split("/", 1)[1]: value for key, value in memory.items() if key.startswith(f"{layer}/")}
            if own:
                remember(optimizer, own)

    def lend(self, share: float) -> bytes:
        raise TaskError(f"islands cannot lend examples ({share:g} of a batch): choose a strategy without injection")

    def borrow(self, examples: bytes) -> None:
        raise TaskError(f"islands cannot borrow examples ({len(examples)} bytes)")


def packed(layers: Layers) -> bytes:
    """Weights, buffers, and what optimisers remember."""
    tensors: dict[str, torch.Tensor] = {}
    for layer, (module, optimizer) in layers.items():
        for name, value in module.state_dict().items():
            tensors[f"{layer}/model/{name}"] = value.detach().cpu().contiguous().clone()
        if optimizer:
            for name, remembered in what_is_remembered(optimizer).items():
                tensors[f"{layer}/optimizer/{name}"] = torch.from_numpy(remembered)
    return safetensors.torch.save(tensors)


def fill(layers: Layers, body: bytes | memoryview) -> bool:
    """Puts what was packed into layers; `False`, and nothing is changed, if it is not all of it or makes no sense."""
    try:
        tensors = read_tensors(body)
    except ValueError:
        return False
    memories = {layer: _memory(tensors, f"{layer}/optimizer/") for layer in layers}
    for layer, (module, optimizer) in layers.items():
        wanted = {f"{layer}/model/{name}": value.shape for name, value in module.state_dict().items()}
        if any(name not in tensors or tensors[name].shape != shape for name, shape in wanted.items()):
            return False
        if not all(torch.isfinite(tensors[name]).all() for name in wanted):
            return False
        if optimizer and not _fits(memories[layer], optimizer):
            return False
    with torch.no_grad():
        for layer, (module, optimizer) in layers.items():
            for name, value in module.state_dict().items():
                value.copy_(tensors[f"{layer}/model/{name}"])
            if optimizer and memories[layer]:
                remember(optimizer, memories[layer])
    return True


def _memory(tensors: dict[str, torch.Tensor], prefix: str) -> Saved:
    return {key.removeprefix(prefix): each.numpy() for key, each in tensors.items() if key.startswith(prefix)}


def _fits(memory: Saved, optimizer: Optimizer) -> bool:
    """Whether it may be what an optimiser of these parameters remembers: numbers of theirs, or single ones."""
    parameters = [each for group in optimizer.param_groups for each in group["params"]]
    for key, value in memory.items():
        place = key.split("/", 1)[0]
        if not place.isdigit() or int(place) >= len(parameters) or not np.isfinite(value).all():
            return False
        if value.size != 1 and value.shape != tuple(parameters[int(place)].shape):
            return False
    return True
