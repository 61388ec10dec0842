"""An island's model as a whole: a simulation can see all of its stages at once."""

from collections.abc import Callable

from torch import nn

from atoll.strategies import Quantity
from atoll.trace import finite_measure
from atoll.training.parameters import Parameters
from atoll.vectors import Vector
from atoll.world.base import World

__all__ = ["Assembly"]


class Assembly:
    """The whole model of an island, made of its stages.

    Args:
        nodes: the nodes of the island.
        tester: tests a model.
        rising: whether the measure rises towards the target.
    """

    def __init__(self, nodes: tuple[str, ...], tester: Callable[[nn.Module, Vector], float], *, rising: bool) -> None:
        self.nodes = nodes
        self._tester = tester
        self._rising = rising
        self._stages: dict[str, tuple[World, nn.Module]] = {}

    def put(self, world: World, layers: nn.Module) -> None:
        self._stages[world.name] = world, layers

    @property
    def is_whole(self) -> bool:
        return len(self._stages) == len(self.nodes)

    @property
    def sent_bytes(self) -> int:
        return sum(world.sent_bytes for world, _ in self._stages.values())

    @property
    def model(self) -> nn.Sequential:
        return nn.Sequential(*(layer for name in self.nodes for layer in self._stages[name][1].children()))

    def read(self, quantity: Quantity) -> Vector:  # noqa: ARG002 - as a replica's
        return Parameters(self.model).read()

    def write(self, quantity: Quantity, values: Vector) -> None:  # noqa: ARG002
        Parameters(self.model).write(values)

    def test(self) -> float:
        model = self.model
        was_training = [layer.training for layer in model]
        measure = self._tester(model, Parameters(model).read())
        for layer, training in zip(model, was_training, strict=True):
            layer.train(training)
        return finite_measure(measure, rising=self._rising)
