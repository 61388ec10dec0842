"""Nodes for the fuzzer: models that are just numbers, a world that machines join as over real links, and a collector of
events.
"""

from collections import Counter
from collections.abc import Callable, Sequence
from typing import TypeVar

import numpy as np
import torch

from atoll.membership import Group
from atoll.seeds import derive
from atoll.state import Saved
from atoll.strategies import Quantity, Work
from atoll.strategies.replica import BLOCK_VALUES
from atoll.trace import Event, Exchanged, ViewChanged, Waited
from atoll.vectors import CPU, WHOLE, Vector, added, divide, minus, of_array, zeros
from atoll.world.base import World
from atoll.world.scope import Scoped
from atoll.world.sim.world import SimWorld

__all__ = ["Drawn", "Joining", "PlainReplica", "Witness"]

WORSE, SLACK = 2.0, 3.0
"""How much worse than any before an exchange may make a model: outer optimisers overshoot, codecs are lossy."""
T = TypeVar("T")
SPREAD = 30.0
"""The distance between unrelated initial models; the optima of nodes are about 1 apart."""


class PlainReplica:
    """A model without layers: parameters and gradients are just numbers."""

    device = CPU
    block_values = BLOCK_VALUES

    def __init__(self, world: World, members: tuple[str, ...], values: Vector) -> None:
        self.world = world
        self.members = members
        self.rank = members.index(world.name)
        self.group = Group(world, members)
        self.steps = 0
        self.work: Work = np.zeros(len(members), dtype=np.int64)
        self.values = values
        self.gradient: Vector = torch.zeros_like(values)
        self.buffers: Vector = zeros(0)

    @property
    def size(self) -> int:
        return len(self.values)

    async def touch(self, work: Callable[[], T]) -> T:
        return await self.world.offload(work, values=self.size)

    def read(self, quantity: Quantity, span: slice = WHOLE) -> Vector:
        if quantity is Quantity.BUFFERS:
            return self.buffers.clone()
        return (self.gradient if quantity is Quantity.GRADIENT else self.values)[span].clone()

    def read_blocks(self, spans: Sequence[slice]) -> list[Vector]:
        return [self.read(Quantity.PARAMETERS, span) for span in spans]

    def write(self, quantity: Quantity, values: Vector, span: slice = WHOLE) -> None:
        if quantity is Quantity.BUFFERS:
            self.buffers = values.clone()
        elif quantity is Quantity.GRADIENT:
            self.gradient = values.clone()
        else:
            self.values = self.values.clone()
            self.values[span] = values

    def add(self, quantity: Quantity, change: Vector, span: slice = WHOLE) -> None:
        self.write(quantity, self.read(quantity, span) + change, span)

    def add_blocks(self, changes: Sequence[tuple[slice, Vector]]) -> None:
        for span, change in changes:
            self.add(Quantity.PARAMETERS, change, span)

    def lend(self, share: float) -> bytes:  # noqa: ARG002 - it has no examples
        return b""

    def borrow(self, examples: bytes) -> None:
        """Does nothing: it has no examples."""

    def scale_batch(self, factor: float) -> None:
        """Does nothing: it has no batches."""

    def include(self, work: Work) -> None:
        np.maximum(self.work, work, out=self.work)

    @property
    def loss(self) -> float:
        return float(self.gradient.double().square().mean())

    def memory(self) -> Saved:
        return {}

    @property
    def global_step(self) -> int:
        return self.steps

    def take_over(self, work: Work, memory: Saved, steps: int) -> None:  # noqa: ARG002 - there is no optimiser
        self.work[:] = work


class Joining(Scoped):
    """A node of a run that machines join at any time: the first one begins it, and all of them are late."""

    __slots__ = ("_founds",)

    def __init__(self, world: SimWorld, *, founds: bool) -> None:
        super().__init__(world, "run", alone=True)
        self._founds = founds

    @property
    def is_founder(self) -> bool:
        return self._founds


class Drawn(PlainReplica):
    """A model with a different optimum on every node; the optimum of all together is their mean.

    Args:
        world: the node's world.
        members: all nodes of the run.
        seed: the seed of the case.
        size: how many values the model has.
        apart: whether it begins with a different model on each node.
        witness: collects violations.
        blocks: in how many blocks it is exchanged.
    """

    def __init__(
        self,
        world: World,
        members: tuple[str, ...],
        seed: int,
        size: int,
        *,
        apart: bool,
        witness: "Witness",
        blocks: int = 1,
    ) -> None:
        places = {name: _draw(seed, "place", name, size) for name in members}
        began = SPREAD * _draw(seed, "begins", world.name, size) if apart else zeros(size)
        super().__init__(world, members, began)
        self._place = places[world.name]
        self.buffers = torch.tensor([1.0 + self.rank, -1.0 - self.rank])
        self._middle: Vector = divide(added(list(places.values())), len(places))
        self._witness = witness
        self.holds = world.is_founder
        """Whether it has ever held the run's model."""
        self.at_view = 0
        """Samples that its model included when its view began."""
        self.cost = 1.0
        if blocks > 1:
            self.block_values = -(-size // blocks)
        self.before_merge = 0.0, self.holds
        """The largest distance among the holders of the run's model before its last exchange, and whether it was one of
        them.
        """

    def compute_gradient(self) -> None:
        self.gradient = minus(self.values, self._place)
        self.work[self.rank] += 1
        self._witness.done[self.world.name] += 1

    def update(self) -> None:
        self.values = self.values - 0.05 * self.gradient
        drawn_to = torch.tensor([1.0 + self.rank, -1.0 - self.rank])
        self.buffers = 0.9 * self.buffers + 0.1 * drawn_to
        self.steps += 1
        self.before_merge = self._witness.worst_distance(), self.holds

    @property
    def distance(self) -> float:
        """The distance from the optimum of all nodes together."""
        return float((self.values - self._middle).double().square().mean().sqrt())

    def take_over(self, work: Work, memory: Saved, steps: int) -> None:
        handed = int(work.sum())
        if self.holds and handed < self.at_view:
            self._witness.complaints.append(
                f"{self.world.name} held a model of {self.at_view} samples, and was handed one of {handed}"
            )
        super().take_over(work, memory, steps)
        self.holds = True


def _draw(seed: int, what: str, name: str, size: int) -> Vector:
    return of_array(np.random.default_rng(derive(seed, what, name) % 2**32).normal(size=size))


class Witness:
    """Collects events for the checks."""

    def __init__(self) -> None:
        self.exchanged: list[Exchanged] = []
        self.waited: list[Waited] = []
        self.replicas: dict[str, Drawn] = {}
        self.done: Counter[str] = Counter()
        """How many gradients each node has computed."""
        self.complaints: list[str] = []
        """Violations: work that was lost."""

    def worst_distance(self) -> float:
        """The largest distance among the holders of the run's model."""
        return max((each.distance for each in self.replicas.values() if each.holds), default=0.0)

    def merged(self, replica: Drawn) -> None:
        """Checks a model after an exchange: it may not be much further away than the worst was before."""
        before, held = replica.before_merge
        if not held:  # without handovers, a node that has merged a push of others holds it too
            replica.holds = replica.holds or replica.group.view.number == 0
        elif replica.distance > WORSE * before + SLACK:
            self.complaints.append(
                f"{replica.world.name}: an exchange at {replica.world.now:.1f} s made the model worse: "
                f"{replica.distance:.1f} from the optimum, at most {before:.1f} before"
            )

    def record(self, event: Event) -> None:
        if isinstance(event, Exchanged):
            self.exchanged.append(event)
        elif isinstance(event, Waited):
            self.waited.append(event)
        elif isinstance(event, ViewChanged) and event.node in self.replicas:
            replica = self.replicas[event.node]
            replica.at_view = int(replica.work.sum())

    def flush(self) -> None:
        """Nothing is written."""
