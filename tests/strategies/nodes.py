"""A replica without a model: what strategies do to a vector can then be checked by hand."""

import asyncio
from collections.abc import Callable
from typing import Any

from numpy.typing import NDArray

from atoll.fuzz import PlainReplica
from atoll.network import Network
from atoll.strategies import Strategy
from atoll.trace import Recorder
from atoll.training.drive import Background, Local, drive
from atoll.vectors import of_array
from atoll.world import IDEAL, Physics, Simulation
from atoll.world.base import World
from atoll.world.faults import parse_faults
from atoll.world.sim.world import SimWorld

Numbers = NDArray[Any]


class VectorReplica(PlainReplica):
    """Parameters that move by the same step each time."""

    def __init__(self, world: World, members: tuple[str, ...], values: Numbers, step: Numbers) -> None:
        super().__init__(world, members, of_array(values))
        self.step = of_array(step)
        self.borrowed: list[str] = []
        self.batch_factor = 1.0
        self.cost = 1.0

    @property
    def array(self) -> Numbers:
        """A copy of its values."""
        return self.values.numpy().copy()

    @array.setter
    def array(self, values: Numbers) -> None:
        self.values = of_array(values)

    def compute_gradient(self) -> None:
        self.gradient = self.step.clone()
        self.work[self.rank] += 1

    def update(self) -> None:
        self.values = self.values + self.gradient
        self.steps += 1

    def lend(self, share: float) -> bytes:
        return f"{self.world.name} {share}".encode()

    def borrow(self, examples: bytes) -> None:
        self.borrowed.append(examples.decode())

    def scale_batch(self, factor: float) -> None:
        self.batch_factor = factor


Look = Callable[[VectorReplica], None]


def run_strategy(
    net: Network,
    strategy: Strategy,
    make: Callable[[World], tuple[Numbers, Numbers]],
    *,
    steps: int,
    seed: int = 0,
    physics: Physics = IDEAL,
    look: Look | None = None,
    linger_s: float = 100.0,
    trace: Recorder | None = None,
    script: str = "",
) -> dict[str, VectorReplica]:
    """Every node takes so many steps with the strategy, then lets what is under way come to an end."""
    members = net.node_names
    replicas: dict[str, VectorReplica] = {}

    async def program(world: SimWorld) -> None:
        values, step = make(world)
        replica = replicas[world.name] = VectorReplica(world, members, values, step)
        talk = strategy.start(replica)

        async def boundary(merged: bool) -> None:  # noqa: FBT001 - the shape of a boundary
            if look:
                look(replica)
            if replica.steps == steps:
                await world.sleep(linger_s)

        async with asyncio.TaskGroup() as group:
            background = Background(group)
            talk.prepare()
            talk.start(background)
            await drive(Local(replica), talk, background, goes_on=lambda: replica.steps < steps, boundary=boundary)

    faults = parse_faults(script, members)
    Simulation(net, seed=seed, physics=physics, trace=trace, faults=faults).run(program)
    return replicas
