"""A replica without a model: what strategies do to a vector can then be checked by hand."""

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from atoll.exchange import Vector
from atoll.group import Group
from atoll.network import Network
from atoll.strategy import Quantity, Strategy, Work
from atoll.trace import Recorder
from atoll.world import IDEAL, Physics, Simulation
from atoll.world.base import World
from atoll.world.sim import SimWorld

T = TypeVar("T")
Numbers = NDArray[Any]


class VectorReplica:
    """Parameters that move by the same step each time."""

    def __init__(self, world: World, members: tuple[str, ...], values: Numbers, step: Numbers) -> None:
        self.world = world
        self.members = members
        self.group = Group(world, members)
        self.rank = members.index(world.name)
        self.steps = 0
        self.work: Work = np.zeros(len(members), dtype=np.int64)
        self.values = values.astype(np.float32)
        self.gradient = np.zeros_like(self.values)
        self.step = step.astype(np.float32)
        self.borrowed: list[str] = []
        self.batch_factor = 1.0

    def read(self, quantity: Quantity) -> Vector:
        return (self.gradient if quantity is Quantity.GRADIENT else self.values).copy()

    def write(self, quantity: Quantity, values: Vector) -> None:
        if quantity is Quantity.GRADIENT:
            self.gradient = values.copy()
        else:
            self.values = values.copy()

    def add(self, quantity: Quantity, change: Vector) -> None:
        self.write(quantity, self.read(quantity) + change)

    def lend(self, share: float) -> bytes:
        return f"{self.world.name} {share}".encode()

    def borrow(self, examples: bytes) -> None:
        self.borrowed.append(examples.decode())

    def shrink_batch(self, factor: float) -> None:
        self.batch_factor = factor

    def include(self, work: Work) -> None:
        np.maximum(self.work, work, out=self.work)


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
) -> dict[str, VectorReplica]:
    """Every node takes so many steps with the strategy, then lets what is under way come to an end."""
    members = net.node_names
    replicas: dict[str, VectorReplica] = {}

    async def program(world: SimWorld) -> None:
        values, step = make(world)
        replica = replicas[world.name] = VectorReplica(world, members, values, step)
        talk = strategy.talk(replica)
        tasks: dict[asyncio.Task[Any], None] = {}

        def spawn(work: Coroutine[Any, Any, T]) -> asyncio.Task[T]:
            task = asyncio.ensure_future(work)
            tasks[task] = None
            return task

        talk.start(spawn)
        for _ in range(steps):
            await world.compute(lambda: None)
            replica.gradient = replica.step.copy()
            replica.work[replica.rank] += 1
            await talk.after_gradient()
            replica.values = replica.values + replica.gradient
            replica.steps += 1
            await talk.after_step()
            if look:
                look(replica)
        await world.sleep(linger_s)
        for task in tasks:
            task.cancel()

    Simulation(net, seed=seed, physics=physics, trace=trace).run(program)
    return replicas
