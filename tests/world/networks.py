"""Small networks and one-message programs that the tests of worlds share."""

import asyncio
from collections.abc import Callable, Coroutine, Sequence
from typing import Any

from atoll.network import Network, parse_network
from atoll.world import IDEAL, Physics, Simulation
from atoll.world.base import FRAME_BYTES
from atoll.world.faults import Fault
from atoll.world.sim.world import SimWorld

PAIR = """
[[node]]
count = 2
[[link]]
among = "*"
latency_ms = 30
rate_mbps = 10
"""

STAR = """
hubs = ["hub"]
[[node]]
count = 4
[[link]]
between = ["?", "hub"]
latency_ms = 10
rate_mbps = 8
"""


def network(text: str) -> Network:
    return parse_network(text, name="test")


def sized(total_bytes: int) -> bytes:
    """A body that makes a message on channel 'x' this long in all."""
    return bytes(total_bytes - FRAME_BYTES - 1)


Send = tuple[float, str, str, int]  # when, from, to, how many bytes in all


def arrivals(
    net: Network,
    sends: Sequence[Send],
    *,
    physics: Physics = IDEAL,
    seed: int = 0,
    faults: Sequence[Fault] = (),
    watch: Callable[[Simulation], None] | None = None,
) -> list[float]:
    """When each message arrives, in the order of `sends`."""
    times: dict[int, float] = {}

    async def program(world: SimWorld) -> None:
        async def send(index: int, when: float, receiver: str, size: int) -> None:
            await world.sleep(when)
            await world.peer(receiver).send("x", index.to_bytes(2), sized(size - 2))

        async def receive(count: int) -> None:
            for _ in range(count):
                message = await world.receive("x")
                times[int.from_bytes(message.head)] = world.now

        async with asyncio.TaskGroup() as group:
            for index, (when, sender, receiver, size) in enumerate(sends):
                if sender == world.name:
                    group.create_task(send(index, when, receiver, size))
            group.create_task(receive(sum(receiver == world.name for _, _, receiver, _ in sends)))

    simulation = Simulation(net, seed=seed, physics=physics, faults=faults)
    if watch:
        watch(simulation)
    simulation.run(program)
    return [times[index] for index in range(len(sends))]


def run(
    net: Network, program: Callable[[SimWorld], Coroutine[Any, Any, Any]], *, seed: int = 0, physics: Physics = IDEAL
) -> dict[str, Any]:
    return Simulation(net, seed=seed, physics=physics).run(program)
