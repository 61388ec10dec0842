"""A replica without a model: what strategies do to a vector can then be checked by hand."""

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from atoll.fuzz import Numbers as FuzzNumbers
from atoll.network import Network
from atoll.strategies import Strategy
from atoll.trace import Recorder
from atoll.world import IDEAL, Physics, Simulation
from atoll.world.base import World
from atoll.world.faults import parse_faults
from atoll.world.sim.world import SimWorld

T = TypeVar("T")
Numbers = NDArray[Any]


class VectorReplica(FuzzNumbers):
    """Parameters that move by the same step each time."""

    def __init__(self, world: World, members: tuple[str, ...], values: Numbers, step: Numbers) -> None:
        super().__init__(world, members, values.astype(np.float32))
        self.step = step.astype(np.float32)
        self.borrowed: list[str] = []
        self.batch_factor = 1.0

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
        talk = strategy.talk(replica)
        tasks: dict[asyncio.Task[Any], None] = {}

        def spawn(work: Coroutine[Any, Any, T]) -> asyncio.Task[T]:
            task = asyncio.ensure_future(work)
            tasks[task] = None
            return task

        talk.start(spawn)
        try:
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
        finally:  # a node that crashes says nothing more
            for task in tasks:
                task.cancel()

    faults = parse_faults(script, members)
    Simulation(net, seed=seed, physics=physics, trace=trace, faults=faults).run(program)
    return replicas
