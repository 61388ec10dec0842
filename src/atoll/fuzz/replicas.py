"""Nodes for the fuzzer: models without torch, a world in which machines join as they do over real links, and somebody
who sees every event.
"""

from collections import Counter

import numpy as np

from atoll.membership import Group
from atoll.seeds import derive
from atoll.state import Saved
from atoll.strategies import Quantity, Work
from atoll.trace import Event, Exchanged, ViewChanged, Waited
from atoll.vectors import Vector
from atoll.world.base import World
from atoll.world.scope import Scoped
from atoll.world.sim.world import SimWorld

__all__ = ["Drawn", "Joining", "Numbers", "Witness"]

WORSE, SLACK = 2.0, 3.0
"""An exchange may make a model worse than any before by so much: outer optimisers overshoot, codecs are lossy."""
SPREAD = np.float32(30)
"""How far apart models begin that have nothing in common, where the places that nodes are drawn to are 1 apart."""


class Numbers:
    """A model without torch: parameters and gradients are just numbers."""

    def __init__(self, world: World, members: tuple[str, ...], values: Vector) -> None:
        self.world = world
        self.members = members
        self.rank = members.index(world.name)
        self.group = Group(world, members)
        self.steps = 0
        self.work: Work = np.zeros(len(members), dtype=np.int64)
        self.values = values
        self.gradient: Vector = np.zeros_like(values)
        self.buffers: Vector = np.zeros(0, dtype=np.float32)

    def read(self, quantity: Quantity) -> Vector:
        if quantity is Quantity.BUFFERS:
            return self.buffers.copy()
        return (self.gradient if quantity is Quantity.GRADIENT else self.values).copy()

    def write(self, quantity: Quantity, values: Vector) -> None:
        if quantity is Quantity.BUFFERS:
            self.buffers = values.copy()
        elif quantity is Quantity.GRADIENT:
            self.gradient = values.copy()
        else:
            self.values = values.copy()

    def add(self, quantity: Quantity, change: Vector) -> None:
        self.write(quantity, self.read(quantity) + change)

    def lend(self, share: float) -> bytes:  # noqa: ARG002 - it has no examples
        return b""

    def borrow(self, examples: bytes) -> None:
        """It has none of its own either."""

    def scale_batch(self, factor: float) -> None:
        """Nor batches."""

    def include(self, work: Work) -> None:
        np.maximum(self.work, work, out=self.work)

    @property
    def loss(self) -> float:
        return float(np.square(self.gradient, dtype=np.float64).mean())

    def memory(self) -> Saved:
        return {}

    @property
    def global_step(self) -> int:
        return self.steps

    def take_over(self, work: Work, memory: Saved, steps: int) -> None:  # noqa: ARG002 - there is no optimiser
        self.work[:] = work


class Joining(Scoped):
    """A machine of a run that machines join as they like: the first one begins it, and all of them are late."""

    __slots__ = ("_founds",)

    def __init__(self, world: SimWorld, *, founds: bool) -> None:
        super().__init__(world, "run", alone=True)
        self._founds = founds

    @property
    def is_founder(self) -> bool:
        return self._founds


class Drawn(Numbers):
    """Every node is drawn to a place of its own; what all of them want together is the middle of these.

    Args:
        world: where the node is.
        members: all nodes of the run.
        seed: of the case.
        size: how many values the model has.
        apart: whether it begins with a model of its own.
        witness: who is told of what should not have been.
    """

    def __init__(
        self, world: World, members: tuple[str, ...], seed: int, size: int, *, apart: bool, witness: "Witness"
    ) -> None:
        places = {name: _draw(seed, "place", name, size) for name in members}
        began = SPREAD * _draw(seed, "begins", world.name, size) if apart else np.zeros(size, dtype=np.float32)
        super().__init__(world, members, began)
        self._place = places[world.name]
        self.buffers = np.array([1 + self.rank, -1 - self.rank], dtype=np.float32)
        self._middle: Vector = np.mean(list(places.values()), axis=0)
        self._witness = witness
        self.holds = world.is_founder
        """Whether it has ever held the run's model."""
        self.at_view = 0
        """Samples that its model included when its view began."""
        self.cost = 1.0
        self.before_merge = 0.0, self.holds
        """How far away the worst of those who hold the run's model was before its last exchange, and whether it was
        one of them.
        """

    def compute_gradient(self) -> None:
        self.gradient = self.values - self._place
        self.work[self.rank] += 1
        self._witness.done[self.world.name] += 1

    def update(self) -> None:
        self.values = self.values - np.float32(0.05) * self.gradient
        drawn_to = np.array([1 + self.rank, -1 - self.rank], dtype=np.float32)
        self.buffers = np.float32(0.9) * self.buffers + np.float32(0.1) * drawn_to
        self.steps += 1
        self.before_merge = self._witness.worst_distance(), self.holds

    @property
    def distance(self) -> float:
        """From what all want together."""
        return float(np.sqrt(np.square(self.values - self._middle, dtype=np.float64).mean()))

    def take_over(self, work: Work, memory: Saved, steps: int) -> None:
        handed = int(work.sum())
        if self.holds and handed < self.at_view:
            self._witness.complaints.append(
                f"{self.world.name} held a model of {self.at_view} samples, and was handed one of {handed}"
            )
        super().take_over(work, memory, steps)
        self.holds = True


def _draw(seed: int, what: str, name: str, size: int) -> Vector:
    drawn: Vector = np.random.default_rng(derive(seed, what, name) % 2**32).normal(size=size).astype(np.float32)
    return drawn


class Witness:
    """Sees every event."""

    def __init__(self) -> None:
        self.exchanged: list[Exchanged] = []
        self.waited: list[Waited] = []
        self.replicas: dict[str, Drawn] = {}
        self.done: Counter[str] = Counter()
        """How many gradients each node has computed."""
        self.complaints: list[str] = []
        """What was lost."""

    def worst_distance(self) -> float:
        """Of those who hold the run's model."""
        return max((each.distance for each in self.replicas.values() if each.holds), default=0.0)

    def merged(self, replica: Drawn) -> None:
        """An exchange has changed a model: it may not be much further away than the worst was before."""
        before, held = replica.before_merge
        if not held:  # where nothing is handed over, who has merged what others pushed is one of them
            replica.holds = replica.holds or replica.group.view.number == 0
        elif replica.distance > WORSE * before + SLACK:
            self.complaints.append(
                f"{replica.world.name}: an exchange at {replica.world.now:.1f} s has made the model worse: "
                f"{replica.distance:.1f} from where it should be, and before that {before:.1f} at most"
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
