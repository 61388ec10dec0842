"""A node of a training run over real links: what a node process runs."""

import asyncio
import math
from collections.abc import Coroutine
from pathlib import Path
from typing import Any

import numpy as np
import torch

from atoll.islands.curriculum import TaskLesson
from atoll.islands.layout import Layout, lay_out
from atoll.islands.node import IslandNode
from atoll.islands.settings import parse_islands
from atoll.islands.settlement import Settlement
from atoll.runs.simulated import RunSpec, check_device
from atoll.strategies import parse_strategy
from atoll.trace import FinalTested
from atoll.training.loop import train
from atoll.training.parts import Parts
from atoll.training.replica import TrainedReplica
from atoll.training.task import Task
from atoll.training.tasks import load_task
from atoll.world.faults import Fault, parse_faults
from atoll.world.live.world import LiveWorld

__all__ = ["node", "settings_for", "slowness"]


def settings_for(spec: RunSpec, folder: Path) -> dict[str, Any]:
    """What a node process must know of a run."""
    return {
        "members": spec.network.node_names,
        "task": spec.task,
        "data": str(spec.data.resolve()) if spec.data else None,
        "strategy": spec.strategy,
        "shards": spec.shards,
        "seed": spec.seed,
        "role": spec.role,
        "device": spec.device,
        "faults": "\n".join(fault.as_toml() for fault in spec.faults),
        "folder": str(folder),
        "arguments": list(spec.script[1:]),
        "islands": _islands(spec),
    }


def _islands(spec: RunSpec) -> dict[str, Any]:
    """Who holds what, and what is known of nodes and links, to plan anew by."""
    if not spec.islands:
        return {}
    settings = parse_islands(spec.islands)
    layout = lay_out(spec.network, load_task(spec.task, spec.data), settings, seed=spec.seed)
    who = "/".join("+".join(order) for order in layout.islands.values())
    _, _, rest = spec.islands.partition(":")
    return {"islands": f"{who}:{rest}", "facts": layout.survey.facts()}


def node(world: LiveWorld, settings: dict[str, Any]) -> Coroutine[Any, Any, None]:
    """Makes everything ready, and returns what trains until it is told to leave."""
    torch.set_num_threads(1)  # the nodes of an emulation share a machine
    members = tuple(settings["members"])
    task = load_task(settings["task"], Path(settings["data"]) if settings["data"] else None)
    task = task.to(check_device(settings["device"]))
    faults = parse_faults(settings["faults"], members)
    world.slowness = slowness(world, faults)
    if settings["islands"]:
        chosen = parse_islands(settings["islands"]["islands"])
        return _hold(world, lay_out(settings["islands"]["facts"], task, chosen), task, settings)
    parts = Parts(task, members, shards=settings["shards"], seed=settings["seed"], role=settings["role"], faults=faults)
    replica = parts.replica(world)
    return _train(world, replica, task, parts, settings)


async def _hold(world: LiveWorld, layout: Layout, task: Task, settings: dict[str, Any]) -> None:
    """The same where islands hold the model."""
    parts = Parts(task, tuple(layout.islands), shards=settings["shards"], seed=settings["seed"])
    lesson = TaskLesson(task, parts, seed=settings["seed"])
    strategy, first = parse_strategy(settings["strategy"]), Settlement.first(layout)
    node = IslandNode(world, layout.survey, layout.settings, lesson, strategy, first=first)
    if world.name == settings["members"][0] and not world.is_late:
        world.record(parts.started(settings["strategy"], lesson.size))
        world.record(layout.formed())
    try:
        await node.run()
    except asyncio.CancelledError:
        np.save(Path(settings["folder"]) / f"used.{world.name}.npy", parts.used)
        raise


async def _train(world: LiveWorld, replica: TrainedReplica, task: Task, parts: Parts, settings: dict[str, Any]) -> None:
    if world.name == settings["members"][0] and not world.is_late:
        world.record(parts.started(settings["strategy"], replica.size))
    try:
        await train(replica, task, parse_strategy(settings["strategy"]))
    except asyncio.CancelledError:
        ended_s = world.now
        measure = await world.aside(lambda: task.test_finally(replica.model))
        if measure is not None:
            world.record(FinalTested(at=ended_s, node=world.name, measure=measure))
        np.save(Path(settings["folder"]) / f"used.{world.name}.npy", parts.used)
        raise


def slowness(world: LiveWorld, faults: tuple[Fault, ...]) -> "Slowness":
    """How much slower than it should be a node is, by a script of faults."""
    own = [fault for fault in faults if fault.kind in ("slow", "hang") and world.name in fault.nodes]
    return Slowness(own, world.step_s)


class Slowness:
    """How much slower than it should be a machine is at a time; a step during which it hangs ends with that."""

    def __init__(self, faults: list[Fault], step_s: float) -> None:
        self._faults = faults
        self._step_s = step_s

    def __call__(self, now: float) -> float:
        here = [fault for fault in self._faults if fault.at <= now < fault.until]
        hangs_s = max((fault.until - now for fault in here if fault.kind == "hang"), default=0.0)
        return max(math.prod(fault.factor for fault in here), hangs_s / self._step_s if hangs_s else 0.0)
