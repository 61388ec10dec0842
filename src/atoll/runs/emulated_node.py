"""A node of a training run on an emulated network: the program of a node process."""

import math
from collections.abc import Coroutine
from typing import Any

import torch

from atoll.config import RunConfig
from atoll.islands.layout import lay_out
from atoll.runs.node import Kit, build_node, until_the_end
from atoll.training.tasks import load_task
from atoll.world.faults import Fault, parse_faults
from atoll.world.live.world import LiveWorld

__all__ = ["node", "settings_for", "slowness"]


def settings_for(config: RunConfig) -> dict[str, Any]:
    """The settings of a node process: the run's configuration, and with islands, their layout and the facts about nodes
    and links, for later plans.
    """
    faults = "\n".join(fault.as_toml() for fault in config.faults)
    found = {key: value for key, value in config.as_dict().items() if key not in {"network", "fault"}}
    settings = config.island_settings
    if not settings:
        return {"config": found, "faults": faults, "facts": None}
    layout = lay_out(config.links, load_task(config.task, config.data), settings, seed=config.seed)
    who = "/".join("+".join(order) for order in layout.islands.values())
    _, _, rest = config.islands.partition(":")
    return {"config": {**found, "islands": f"{who}:{rest}"}, "faults": faults, "facts": layout.survey.facts()}


def node(world: LiveWorld, settings: dict[str, Any]) -> Coroutine[Any, Any, None]:
    """Prepares everything, and returns a coroutine that trains until cancelled."""
    torch.set_num_threads(1)  # the nodes of an emulation share a machine
    config = RunConfig.from_dict(settings["config"])
    faults = parse_faults(settings["faults"], world.names)
    world.slowness = slowness(world, faults)
    kit = Kit(config, world.names, faults=faults, facts=settings["facts"])
    folder = config.checkpoints
    node = build_node(world, kit, keep=folder / f"{world.name}.safetensors" if folder else None)

    async def work() -> None:
        is_first = world.name == world.names[0]
        if is_first and not world.is_late:
            for event in node.opening():
                world.record(event)
        await until_the_end(node, save=config.save if is_first else None)

    return work()


def slowness(world: LiveWorld, faults: tuple[Fault, ...]) -> "Slowness":
    """How much slower a node is than normal, by a fault script."""
    own = [fault for fault in faults if fault.kind in ("slow", "hang") and world.name in fault.nodes]
    return Slowness(own, world.step_s)


class Slowness:
    """How much slower a machine is than normal at a time; a step during which it hangs ends when the hang ends."""

    def __init__(self, faults: list[Fault], step_s: float) -> None:
        self._faults = faults
        self._step_s = step_s

    def __call__(self, now: float) -> float:
        here = [fault for fault in self._faults if fault.at <= now < fault.until]
        hangs_s = max((fault.until - now for fault in here if fault.kind == "hang"), default=0.0)
        return max(math.prod(fault.factor for fault in here), hangs_s / self._step_s if hangs_s else 0.0)
