"""The composition root: assembles a node of a run, in every world.

    kit = Kit(config, members)          what the nodes of a process share
    node = build_node(world, kit)       one of them
    await node.run()

A simulation has many nodes and one kit; elsewhere a process has one node.
"""

import abc
import asyncio
from pathlib import Path
from typing import Any

import safetensors.torch
import torch

from atoll.config import RunConfig
from atoll.errors import CheckpointError, TaskError
from atoll.islands.curriculum import TaskCurriculum
from atoll.islands.layout import Layout, lay_out
from atoll.islands.live import Shelf, at_work, open_node
from atoll.islands.node import IslandNode, Seated
from atoll.islands.settlement import Settlement
from atoll.state import AtBoundary, Saved
from atoll.trace import Event, FinalTested
from atoll.training.keeper import Keeper
from atoll.training.loop import train
from atoll.training.shares import Parts, examples_used
from atoll.training.task import Examples, Task
from atoll.training.tasks import load_task
from atoll.world.base import World
from atoll.world.faults import Fault
from atoll.world.live.world import LiveWorld

__all__ = ["AtBoundary", "Kit", "RunNode", "build_node", "check_device", "until_the_end"]


class Kit:
    """The objects that all nodes of a run in one process share: task, examples, strategy, layout of islands.

    Args:
        config: the run's configuration.
        members: all nodes.
        task: used instead of the one that the configuration names.
        layout: the islands, instead of those that follow from the network.
        facts: what is known about machines and links, if there is no network description.
        faults: faults of computation; by default those of the configuration.
    """

    def __init__(
        self,
        config: RunConfig,
        members: tuple[str, ...],
        *,
        task: Task | None = None,
        layout: Layout | None = None,
        facts: dict[str, Any] | None = None,
        faults: tuple[Fault, ...] | None = None,
    ) -> None:
        self.config = config
        self.task = (task or load_task(config.task, config.data)).to(check_device(config.device))
        self.strategy = config.parsed_strategy
        self.settings = config.island_settings
        if self.settings and layout is None and (facts or config.network):
            layout = lay_out(facts or config.links, self.task, self.settings, seed=config.seed)
        self.layout = layout
        self.parts = Parts(
            self.task,
            tuple(layout.islands) if layout else members,
            shards=config.shards,
            seed=config.seed,
            role=config.role,
            faults=config.faults if faults is None else faults,
        )


class RunNode(abc.ABC):
    """A node of a run."""

    def __init__(self, world: World, kit: Kit) -> None:
        self.world = world
        self._kit = kit

    @property
    @abc.abstractmethod
    def size(self) -> int:
        """How many parameters the whole model has."""

    def opening(self, at: float = 0.0) -> list[Event]:
        """The first events of the trace."""
        started = self._kit.parts.started(self._kit.config.strategy, self.size, at=at)
        return [started, self._kit.layout.formed()] if self._kit.layout else [started]

    @abc.abstractmethod
    def load(self, saved: Saved, *, anew: bool = False) -> None:
        """Resumes from a state; `anew`: the node has crashed since, and restarts."""

    @abc.abstractmethod
    async def run(self, *, steps: int | None = None, save: Path | None = None) -> None:
        """Trains until cancelled, or for this many steps.

        Args:
            steps: the number of steps.
            save: the file for the model at the end.
        """

    async def closing(self) -> list[Event]:
        """The last events of the trace: the final test, and the examples used."""
        world, task, at = self.world, self._kit.task, self.world.now
        events: list[Event] = [examples_used(self._kit.parts.used, at, world.name)]
        measure = await world.aside(lambda: self._test_finally(task))
        if measure is not None:
            events.insert(0, FinalTested(at=at, node=world.name, measure=measure))
        return events

    @abc.abstractmethod
    def _test_finally(self, task: Task) -> float | None:
        """The task's final test; `None` if it has none, or this node has no whole model."""


class ReplicaNode(RunNode):
    """A node that holds the whole model."""

    def __init__(self, world: World, kit: Kit, *, at_boundary: AtBoundary | None, keeper: Keeper | None) -> None:
        super().__init__(world, kit)
        self.replica = kit.parts.replica(world)
        self._at_boundary = at_boundary or (keeper.at_boundary if keeper else None)
        self._keeper = keeper
        self._resume: Saved | None = None

    @property
    def size(self) -> int:
        return self.replica.size

    def load(self, saved: Saved, *, anew: bool = False) -> None:
        self._resume = None if anew else saved

    async def run(self, *, steps: int | None = None, save: Path | None = None) -> None:
        try:
            await train(
                self.replica,
                self._kit.task,
                self._kit.strategy,
                steps=steps,
                resume=self._resume,
                at_boundary=self._at_boundary,
            )
        except ExceptionGroup as group:
            refused = group.subgroup(CheckpointError)
            raise (refused.exceptions[0] if refused else group) from None
        finally:
            if self._keeper:
                await self._keeper.finish()
            if save:
                safetensors.torch.save_model(self.replica.model, str(save))

    def _test_finally(self, task: Task) -> float | None:
        return task.test_finally(self.replica.model)


class StageNode(RunNode):
    """A node of an island, which holds some layers of the model.  Over real links it first measures its machine and its
    links.
    """

    def __init__(
        self,
        world: World,
        kit: Kit,
        *,
        at_boundary: AtBoundary | None,
        seated: Seated,
        shelf: Shelf | None,
        memory: float | None,
    ) -> None:
        super().__init__(world, kit)
        self._curriculum = TaskCurriculum(kit.task, kit.parts, seed=kit.config.seed)
        self._shelf = shelf
        self._memory = memory
        self._node: IslandNode | None = None
        if kit.layout:
            self._node = IslandNode(
                world,
                kit.layout.survey,
                kit.layout.settings,
                self._curriculum,
                kit.strategy,
                first=Settlement.first(kit.layout),
                seated=seated,
                at_boundary=at_boundary,
            )

    @property
    def size(self) -> int:
        return self._curriculum.size

    def load(self, saved: Saved, *, anew: bool = False) -> None:
        assert self._node is not None, "only where islands are laid out"
        if anew:
            self._node.store.shelve(saved["layers"].tobytes())  # its own checkpoint survives the crash
        else:
            self._node.load(saved)

    async def run(self, *, steps: int | None = None, save: Path | None = None) -> None:
        if self._node is None:
            self._node = await self._measured()
        elif steps is None and self._shelf is None and save is None:
            await self._node.run()
            return
        async with at_work(self._node, self._shelf) as working:
            try:
                await working.until(steps)
            finally:
                if save:
                    model = self._curriculum.build()
                    await self._node.collect(model)
                    safetensors.torch.save_model(model, str(save))

    async def _measured(self) -> IslandNode:
        assert isinstance(self.world, LiveWorld)
        kit, settings = self._kit, self._kit.settings
        assert settings is not None
        examples = kit.task.train
        example = Examples(examples.inputs[: kit.task.batch], examples.targets[: kit.task.batch])
        return await open_node(self.world, self._curriculum, example, settings, kit.strategy, memory=self._memory)

    def _test_finally(self, task: Task) -> float | None:  # noqa: ARG002 - it has no whole model
        return None


def build_node(
    world: World,
    kit: Kit,
    *,
    at_boundary: AtBoundary | None = None,
    seated: Seated = lambda *_: None,
    keep: Path | None = None,
    memory: float | None = None,
) -> RunNode:
    """One node of a run.

    Args:
        world: the node's world.
        kit: the objects that it shares with others in this process.
        at_boundary: called after every step.
        seated: called when a node of an island takes a seat.
        keep: a file for its state; if it exists, the node resumes from it.
        memory: bytes that an island may use here; by default what the settings say, or the free memory.
    """
    identity = kit.config.identity
    if kit.settings:
        shelf = Shelf(keep, {"task": identity["task"], "seed": identity["seed"]}) if keep else None
        return StageNode(world, kit, at_boundary=at_boundary, seated=seated, shelf=shelf, memory=memory)
    keeper = Keeper(keep, {**identity, "node": world.name}, world) if keep else None
    node = ReplicaNode(world, kit, at_boundary=at_boundary, keeper=keeper)
    saved = keeper.load() if keeper else None
    if saved:
        node.load(saved)
    return node


async def until_the_end(node: RunNode, *, steps: int | None = None, save: Path | None = None) -> None:
    """Trains until cancelled, or for this many steps; then records the last events."""
    try:
        await node.run(steps=steps, save=save)
    except asyncio.CancelledError:
        await _close(node)
        raise
    await _close(node)


async def _close(node: RunNode) -> None:
    for event in await node.closing():
        node.world.record(event)


def check_device(name: str) -> str:
    """Raises if a device does not exist.  On a GPU, it selects deterministic kernels."""
    try:
        torch.empty(0, device=name)
    except (RuntimeError, AssertionError) as error:
        reason = str(error).splitlines()[0]
        raise TaskError(f"device {name!r}: torch cannot compute there ({reason}); cpu always works") from None
    torch.backends.cudnn.deterministic = True
    return name
