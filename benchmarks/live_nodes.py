"""What the nodes of benchmarks/live.py run, each in a process of its own."""

import asyncio
import itertools
import os
import time
from collections.abc import Coroutine
from typing import Any

import numpy as np
import torch
import torch.distributed as dist

from atoll.fuzz import PlainReplica
from atoll.strategies import Quantity, parse_strategy
from atoll.vectors import WHOLE, Vector, zeros
from atoll.world.base import Lane, World
from atoll.world.live.world import LiveWorld

Settings = dict[str, Any]
STEP_S = 0.035


class Plain(PlainReplica):
    """PlainReplica that do not change but by exchanges."""

    def __init__(self, world: World, members: tuple[str, ...], size: int) -> None:
        super().__init__(world, members, zeros(size).fill_(members.index(world.name)))

    @property
    def loss(self) -> float:
        return 0.0

    def step(self) -> None:
        self.work[self.rank] += 1
        self.steps += 1


class Heavy(Plain):
    """Its gradient has a few large values among many small ones, as those of models have.

    Every step has the same one: a real model's would take longer to compute than to exchange on two cores.
    """

    def __init__(self, world: World, members: tuple[str, ...], size: int) -> None:
        super().__init__(world, members, size)
        drawn = torch.Generator().manual_seed(self.rank)
        self.gradient = torch.randn(size, generator=drawn)
        self.gradient *= torch.rand(size, generator=drawn).square_().square_()

    def write(self, quantity: Quantity, values: Vector, span: slice = WHOLE) -> None:
        """Does nothing: the mean is not used."""

    async def next(self) -> None:
        await self.world.sleep(STEP_S)
        self.step()


async def gradients(world: LiveWorld, settings: Settings) -> dict[str, Any]:
    """Steps of 35 ms with a gradient that all members average, until they have done so often enough."""
    torch.set_num_threads(1)
    members = tuple(sorted([world.name, *world.peer_names]))
    replica = Heavy(world, members, settings["values"])
    async with asyncio.TaskGroup() as group:
        talk = parse_strategy(settings["strategy"]).start(replica)
        started: list[asyncio.Task[Any]] = []

        def spawn(work: Coroutine[Any, Any, Any]) -> asyncio.Task[Any]:
            started.append(group.create_task(work))
            return started[-1]

        talk.prepare()
        talk.start(spawn)
        done = 0
        while done < settings["count"]:
            await replica.next()
            await talk.after_gradient()
            done += await talk.after_step()
        await world.sleep(1.0)
        for task in started:
            task.cancel()
    return {}


async def exchanges(world: LiveWorld, settings: Settings) -> dict[str, Any]:
    """So many exchanges by a real strategy, one after the other, membership and all: what each took."""
    members = tuple(sorted([world.name, *world.peer_names]))
    replica = Plain(world, members, settings["bytes"] // 4)
    expected = sum(range(len(members))) / len(members)
    took: list[float] = []
    right = True
    async with asyncio.TaskGroup() as group:
        talk = parse_strategy(settings["strategy"]).start(replica)
        started: list[asyncio.Task[Any]] = []

        def spawn(work: Coroutine[Any, Any, Any]) -> asyncio.Task[Any]:
            task = group.create_task(work)
            started.append(task)
            return task

        talk.prepare()
        talk.start(spawn)
        for _ in range(settings["count"] + settings["warm"]):
            replica.values[:] = float(replica.rank)
            replica.step()
            began = time.monotonic()
            await talk.after_gradient()
            await talk.after_step()
            took.append(time.monotonic() - began)
            right = right and bool(np.allclose(replica.values, expected, rtol=1e-5))
        await world.sleep(1.0)
        for task in started:
            task.cancel()
    return {"took": took[settings["warm"] :], "right": right}


async def gloo(world: LiveWorld, settings: Settings) -> dict[str, Any]:
    """The same with torch's Gloo."""
    return await world.aside(lambda: _gloo(world, settings))


def _gloo(world: LiveWorld, settings: Settings) -> dict[str, Any]:
    names = sorted([world.name, *world.peer_names])
    rank = names.index(world.name)
    os.environ["GLOO_SOCKET_IFNAME"] = settings.get("device", "wan0")
    dist.init_process_group("gloo", init_method=settings["at"], rank=rank, world_size=len(names))
    took = []
    right = True
    expected = sum(range(len(names)))
    for _ in range(settings["count"] + settings["warm"]):
        values = torch.full((settings["bytes"] // 4,), float(rank))
        began = time.monotonic()
        dist.all_reduce(values)
        took.append(time.monotonic() - began)
        right = right and bool((values == expected).all())
    dist.destroy_process_group()
    return {"took": took[settings["warm"] :], "right": right}


async def transfer(world: LiveWorld, settings: Settings) -> dict[str, Any]:
    """The first node sends the second one large message; both take steps all the while.  When bytes came, how long
    heartbeats took, and what was sent.
    """
    first = world.name == "0"
    session = world.host.sessions["1" if first else "0"]
    steps: list[float] = []
    progress: list[tuple[float, int]] = []
    beats: list[float] = []
    unreached = 0

    async def train() -> None:
        while True:
            await world.compute(lambda: None)
            steps.append(world.now)

    async def look() -> None:
        nonlocal unreached
        while True:
            unreached += not session.reachable
            position = session.position(Lane.BULK)[1]
            if not progress or progress[-1][1] != position:
                progress.append((world.now, position))
            beats.append(session.last_round_trip_s)
            await asyncio.sleep(0.01)

    looking = [asyncio.create_task(train()), asyncio.create_task(look())]
    began, before = world.now, world.sent_bytes
    if first:
        await session_send(world, settings["bytes"])
        await world.peer("1").receive("thanks")
    else:
        await world.peer("0").receive("large")
        await world.peer("0").send("thanks", lane=Lane.CONTROL)
    ended = world.now
    await world.sleep(1.0)
    for task in looking:
        task.cancel()
    gaps = [after - earlier for earlier, after in itertools.pairwise(steps)]
    return {
        "began": began,
        "ended": ended,
        "sent": world.sent_bytes - before,
        "twice": session.twice_bytes,
        "progress": progress,
        "unreached": unreached,
        "longest_beat_s": max(beats),
        "longest_step_s": max(gaps),
    }


async def session_send(world: LiveWorld, size: int) -> None:
    await world.peer("1").send("large", body=bytes(size))


async def throughput(world: LiveWorld, settings: Settings) -> dict[str, Any]:
    """Messages from the first node to the second, one after the other: GB/s of each."""
    found = []
    body = bytes(settings["bytes"])
    for _ in range(settings["count"]):
        began = time.monotonic()
        if world.name == "0":
            await world.peer("1").send("much", body=body)
            await world.peer("1").receive("thanks")
        else:
            await world.peer("0").receive("much")
            await world.peer("0").send("thanks", lane=Lane.CONTROL)
        found.append(len(body) / (time.monotonic() - began) / 1e9)
    await world.sleep(0.3)
    return {"rates": found}


async def gloo_throughput(world: LiveWorld, settings: Settings) -> dict[str, Any]:
    """The same with Gloo's send and receive."""
    return await world.aside(lambda: _gloo_throughput(world, settings))


def _gloo_throughput(world: LiveWorld, settings: Settings) -> dict[str, Any]:
    rank = int(world.name)
    os.environ["GLOO_SOCKET_IFNAME"] = "lo"
    dist.init_process_group("gloo", init_method=settings["at"], rank=rank, world_size=2)
    values, thanks = torch.zeros(settings["bytes"] // 4), torch.zeros(1)
    found = []
    for _ in range(settings["count"]):
        began = time.monotonic()
        if rank == 0:
            dist.send(values, 1)
            dist.recv(thanks, 1)
        else:
            dist.recv(values, 0)
            dist.send(thanks, 0)
        found.append(settings["bytes"] / (time.monotonic() - began) / 1e9)
    dist.destroy_process_group()
    return {"rates": found}
