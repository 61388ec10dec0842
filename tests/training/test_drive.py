"""The only step loop: what happens at a boundary, and in which order."""

import asyncio

import numpy as np

from atoll.strategies import Talk
from atoll.training.drive import Background, Local, drive
from atoll.world import Simulation
from atoll.world.sim.world import SimWorld
from tests.strategies.nodes import VectorReplica
from tests.world.networks import network

NET = network("[[node]]\ncount = 1\nstep_s = 0.5")


def test_the_order_of_a_step_and_that_nothing_is_left_running() -> None:
    told: list[str] = []

    class Listening(Talk):
        def __init__(self, replica: VectorReplica) -> None:
            self._replica = replica

        async def after_gradient(self) -> None:
            told.append(f"gradient {self._replica.gradient[0]:g}, model {self._replica.values[0]:g}")

        async def after_step(self) -> bool:
            told.append(f"model {self._replica.values[0]:g}")
            return self._replica.steps == 2

    async def program(world: SimWorld) -> None:
        replica = VectorReplica(world, NET.node_names, np.zeros(2), np.ones(2))
        async with asyncio.TaskGroup() as group:
            background = Background(group)
            background(asyncio.sleep(1000))

            async def boundary(merged: bool) -> None:  # noqa: FBT001 - the shape of a boundary
                told.append(f"boundary at {world.now:g} s, {len(background)} running{', merged' if merged else ''}")

            talk = Listening(replica)
            await drive(Local(replica), talk, background, goes_on=lambda: replica.steps < 2, boundary=boundary)

    simulation = Simulation(NET)
    simulation.run(program)
    assert told == [
        "gradient 1, model 0",
        "model 1",
        "boundary at 0.5 s, 1 running",
        "gradient 1, model 1",
        "model 2",
        "boundary at 1 s, 1 running, merged",
    ]
    assert simulation.now == 1.0, "what ran in the background has ended"
