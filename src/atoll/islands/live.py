"""An island's node over real links: it measures its machine and its links; they are not declared."""

import asyncio
import contextlib
import logging
import os
from collections.abc import AsyncIterator, Callable
from pathlib import Path

import numpy as np
import torch
from torch import nn

from atoll.errors import CheckpointError
from atoll.islands import Layer
from atoll.islands.curriculum import Curriculum
from atoll.islands.layout import Facts, price, unknown
from atoll.islands.node import IslandNode
from atoll.islands.settings import IslandSettings
from atoll.strategies import Strategy
from atoll.training.checkpoint import RunIdentity, read_node, write_node
from atoll.training.keeper import KEEP_EVERY_S
from atoll.training.task import Examples
from atoll.world.base import Lane
from atoll.world.hearing import hear
from atoll.world.live.world import LiveWorld
from atoll.world.scope import Scoped

__all__ = ["Shelf", "at_work", "free_memory", "open_node", "speed_of"]

log = logging.getLogger("atoll")

TRIED_BYTES = 1 << 19
"""Bytes sent to every reachable node to measure the rate."""
TRIED_S = 3.0
TRIES = 3
FREE = 0.8
"""The share of the free memory that may be used."""


async def open_node(
    world: LiveWorld,
    curriculum: Curriculum,
    example: Examples,
    settings: IslandSettings,
    strategy: Strategy,
    *,
    memory: float | None = None,
) -> IslandNode:
    """Makes a node that has measured its machine and its links.

    Args:
        world: the node's world.
        curriculum: the model and its data.
        example: a batch, to measure on.
        settings: how islands train.
        strategy: the communication strategy between islands.
        memory: bytes that it may use; by default what the settings say, or the free memory.
    """
    links = await world.aside(curriculum.build)
    layers, terms = await world.aside(lambda: price(links, example, curriculum.optimizer, settings))
    speed = await world.aside(lambda: speed_of(links, layers, example.inputs, lambda: world.now))
    if world.step_s:  # it emulates a slower machine
        speed = min(speed, 3 * len(example) * sum(layer.flops for layer in layers) / world.step_s)
    device = str(example.inputs.device)
    room = memory or (settings.memory if settings.memory < np.inf else free_memory(device))
    await _try_ways(world)

    def find() -> Facts:
        sessions = world.host.sessions.values()
        ways = {
            each.name: (each.least_round_trip_s / 2, each.rate)
            for each in sessions
            if each.reachable and each.least_round_trip_s
        }
        return Facts(speed, room, ways)

    return IslandNode(world, unknown(world.names, layers, terms), settings, curriculum, strategy, find=find)


def speed_of(
    links: nn.Sequential, layers: tuple[Layer, ...], inputs: torch.Tensor, clock: Callable[[], float]
) -> float:
    """Operations a second of this machine, forward and backward, layer by layer, on a batch; counted as planning
    counts them.
    """
    operations = took_s = 0.0
    values = inputs
    buffers = [each.clone() for each in links.buffers()]
    for link, layer in zip(links, layers, strict=True):
        times = []
        for _ in range(TRIES):
            given = values.detach().clone()
            if given.is_floating_point():
                given.requires_grad_()
            since = clock()
            outputs = link(given)
            if outputs.requires_grad:
                torch.autograd.grad(
                    outputs.sum(),
                    [each for each in (given, *link.parameters()) if each.requires_grad],
                    allow_unused=True,
                )
            if inputs.is_cuda:
                torch.cuda.synchronize(inputs.device)
            times.append(clock() - since)
            values_after = outputs.detach()
        operations += 3 * layer.flops * len(inputs)
        took_s += min(times)
        values = values_after
    for each, before in zip(links.buffers(), buffers, strict=True):
        each.copy_(before)
    return operations / max(took_s, 1e-9)


def free_memory(device: str) -> float:
    """Bytes that may be used on a device."""
    if device.startswith("cuda"):
        return FREE * torch.cuda.mem_get_info(device)[0]
    return FREE * os.sysconf("SC_AVPHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")


async def _try_ways(world: LiveWorld) -> None:
    """Sends data to all reachable nodes, to measure the rates."""
    hall = Scoped(world, "islands")
    body = bytes(TRIED_BYTES)
    names = [name for name in world.peer_names if world.peer(name).reachable]
    tries = [asyncio.ensure_future(hall.peer(name).send("try", b"", body, lane=Lane.BULK)) for name in names]
    if tries:
        await asyncio.wait(tries, timeout=TRIED_S)
    for each in tries:
        each.cancel()


class Shelf:
    """A file with the layers that a node holds.

    Args:
        path: the file.
        identity: the run identity that the file must match.
    """

    def __init__(self, path: Path, identity: RunIdentity) -> None:
        self._path = path
        self._identity = identity

    def load(self, node: IslandNode) -> None:
        if self._path.exists():
            saved = read_node(self._path, self._identity)
            if "layers" not in saved:
                raise CheckpointError(
                    f"{self._path}: a checkpoint of a whole model, not of an island's layers: choose another file"
                )
            node.store.shelve(saved["layers"].tobytes())

    def save(self, node: IslandNode) -> None:
        """Saves the layers in use; if none are in use, the file stays as it is."""
        if node.store.used:
            packed = node.store.pack()
            write_node(self._path, {"layers": np.frombuffer(packed, dtype=np.uint8)}, self._identity)


class Working:
    """A running node."""

    def __init__(self, node: IslandNode, running: "asyncio.Task[None]") -> None:
        self._node = node
        self._running = running

    async def until(self, updates: int | None) -> None:
        """Returns after this many updates; never if `None`."""
        reached = asyncio.ensure_future(self._node.reach(updates)) if updates is not None else None
        waited = {self._running} if reached is None else {self._running, reached}
        try:
            await asyncio.wait(waited, return_when=asyncio.FIRST_COMPLETED)
        finally:
            if reached:
                reached.cancel()
        if self._running.done():
            self._running.result()


@contextlib.asynccontextmanager
async def at_work(node: IslandNode, shelf: Shelf | None = None) -> AsyncIterator[Working]:
    """Runs a node, and saves its layers, until the end of the block."""
    if shelf:
        shelf.load(node)
    hall = Scoped(node.world, "islands")
    running = asyncio.create_task(node.run())
    beside = [asyncio.create_task(hear(hall, "try", lambda _: None))]
    if shelf:
        beside.append(asyncio.create_task(_keep(node, shelf)))
    try:
        yield Working(node, running)
    finally:
        for task in (running, *beside):
            task.cancel()
        await asyncio.wait([running, *beside])
        if shelf:
            await _keep_now(node, shelf)


async def _keep(node: IslandNode, shelf: Shelf) -> None:
    while True:
        await node.world.sleep(KEEP_EVERY_S)
        await _keep_now(node, shelf)


async def _keep_now(node: IslandNode, shelf: Shelf) -> None:
    try:
        await node.world.aside(lambda: shelf.save(node))
    except OSError as error:
        log.warning("%s: cannot write the checkpoint (%s): training continues", node.world.name, error)
