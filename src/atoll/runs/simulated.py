"""One simulated run: from a network, a task, a strategy and a seed to a trace."""

import dataclasses
import math
import shutil
from collections.abc import Iterable
from pathlib import Path
from typing import Protocol

import numpy as np
import safetensors.torch
import torch
from numpy.typing import NDArray
from torch import nn

from atoll.config import DEFAULT_LIMIT_S, RunConfig
from atoll.errors import CheckpointError, TaskError
from atoll.islands.assembly import Assembly
from atoll.islands.layout import Layout
from atoll.runs.node import Kit, ReplicaNode, build_node
from atoll.runs.verdict import Verdict
from atoll.state import Save, Saved, note, read_note
from atoll.strategies import Quantity
from atoll.trace import (
    CheckpointSaved,
    Event,
    FinalTested,
    MeanTested,
    RunEnded,
    Tested,
    Trace,
    read_trace,
)
from atoll.training.checkpoint import TRACE, forget, latest, read_run, write_run
from atoll.training.shares import data_used
from atoll.training.task import Task
from atoll.vectors import Vector, added, divide
from atoll.world import Simulation
from atoll.world.base import World
from atoll.world.sim.world import SimWorld

__all__ = ["IDEAL_STRATEGY", "simulate_run"]

IDEAL_STRATEGY = "allreduce:quantity=gradient"
"""The reference for all strategies, on perfect links: gradients averaged every step."""


def simulate_run(
    config: RunConfig, trace_path: Path, *, task: Task | None = None, layout: Layout | None = None
) -> None:
    """Runs in the simulated world, until all nodes reach the target, half did long ago, or the limit.

    A run with checkpoints consists of several legs: regularly all nodes are stopped where they are, and resume from
    their last step boundary.  So a resumed run writes the same bytes as the run before it would have written.

    Args:
        config: the run's configuration.
        trace_path: the file for the trace; or a folder, for a file with the configuration's own name.
        task: used instead of the one that the configuration names.
        layout: the islands, instead of those that follow from the network.
    """
    torch.set_num_threads(1)  # many processes run on few cores, so more threads would only slow them down
    limit_s = DEFAULT_LIMIT_S if config.limit_s is None else config.limit_s
    config = dataclasses.replace(config, limit_s=limit_s)
    kit = Kit(config, config.links.node_names, task=task, layout=layout)
    trace_path = trace_path / config.file_name if trace_path.is_dir() else trace_path
    config.write(trace_path.with_suffix(".toml"))
    begin_s, nodes, known = 0.0, dict[str, Saved](), Saved()
    if config.resume:
        if config.checkpoints is None:
            raise CheckpointError("there is nothing to resume from: expected a folder of checkpoints")
        place = latest(config.checkpoints)
        begin_s, nodes, known = read_run(place, config.links.node_names, config.identity)
        if begin_s >= limit_s:
            raise CheckpointError(f"{place}: at {begin_s:g} s, and the limit is {limit_s:g} s: expected a later limit")
        shutil.copyfile(place / TRACE, trace_path)
    elif config.checkpoints:
        forget(config.checkpoints)
    with Trace(trace_path, append=config.resume) as trace:
        referee = _Referee(kit.task, trace, kit.parts.used, config.links.node_names, stops=config.stops)
        if known:
            referee.load(known, read_trace(trace_path))
        while True:
            until_s = limit_s
            if config.checkpoints:
                until_s = min(until_s, config.checkpoint_s * (math.floor(begin_s / config.checkpoint_s + 1e-9) + 1))
            nodes = _run_leg(kit, referee, begin_s, until_s, nodes)
            if referee.over or config.checkpoints is None:
                break
            begin_s = until_s
            trace.record(CheckpointSaved(at=begin_s))
            trace.flush()
            write_run(config.checkpoints, begin_s, nodes, referee.save(), config.identity, trace=trace_path)
        if config.save:
            referee.write_model(config.save)


def _run_leg(
    kit: Kit, referee: "_Referee", begin_s: float, until_s: float, nodes: dict[str, Saved]
) -> dict[str, Saved]:
    """Runs a leg of a run.

    Args:
        kit: the objects that the nodes share.
        referee: sees all events.
        begin_s: when it begins.
        until_s: when it ends, at the latest.
        nodes: the nodes' states at the end of the previous leg.

    Returns:
        Their states now, if there are checkpoints: of all live nodes, each at its last step boundary.
    """
    config = kit.config
    simulation = Simulation(config.links, seed=config.seed, trace=referee, faults=config.faults)
    states: dict[str, Saved] = dict(nodes)
    islands = _Islands(kit, referee)
    has_begun = False
    referee.begin(simulation, last=config.limit_s is None or until_s >= config.limit_s)

    async def program(world: SimWorld) -> None:
        nonlocal has_begun

        async def remember(save: Save) -> None:
            states[world.name] = await save()

        at_boundary = remember if config.checkpoints else None
        node = build_node(world, kit, at_boundary=at_boundary, seated=islands.seated)
        if not has_begun and world.now == 0:
            for event in node.opening():
                world.record(event)
        has_begun = True
        if isinstance(node, ReplicaNode):
            referee.replicas[world.name] = node.replica
            if world.now != begin_s:
                states.pop(world.name, None)  # its state before the crash is lost
        if world.name in nodes:
            node.load(nodes[world.name], anew=world.now != begin_s)
        await node.run()

    simulation.run(program, limit_s=until_s, begin_s=begin_s)
    return {name: saved for name, saved in states.items() if name not in simulation.crashed}


class _Islands:
    """The islands of a leg as whole models: a simulation can see all stages at once."""

    def __init__(self, kit: Kit, referee: "_Referee") -> None:
        self._kit = kit
        self._referee = referee
        self._whole: dict[tuple[str, ...], Assembly] = {}

    def seated(self, world: World, order: tuple[str, ...], layers: nn.Module) -> Assembly:
        """The whole model of a node's island; the one that it was in before no longer exists."""
        whole, replicas = self._whole, self._referee.replicas
        for old in [each for each in whole if world.name in each and each != order]:
            if replicas.get(old[-1]) is whole.pop(old):
                del replicas[old[-1]]
        assembly = whole.setdefault(order, Assembly(order, self._kit.parts.tester, rising=self._kit.task.rising))
        assembly.put(world, layers)
        if assembly.is_whole:
            replicas[order[-1]] = assembly
        return assembly


class _Judged(Protocol):
    """A model that a referee can test."""

    @property
    def model(self) -> nn.Module: ...

    def read(self, quantity: Quantity) -> Vector: ...

    def write(self, quantity: Quantity, values: Vector) -> None: ...

    def test(self) -> float: ...


class _Referee:
    """Sees every event on its way to the trace: ends the run when it is decided, and tests the mean of all replicas."""

    def __init__(
        self, task: Task, trace: Trace, used: NDArray[np.int64], nodes: tuple[str, ...], *, stops: bool
    ) -> None:
        self._task = task
        self._used = used
        self._trace = trace
        self.replicas: dict[str, _Judged] = {}
        """The nodes of this leg that have begun."""
        self._verdict = Verdict(nodes, stops=stops)
        self._tests = 0
        self._simulation: Simulation | None = None
        self._is_last = True
        self.over = False

    def begin(self, simulation: Simulation, *, last: bool) -> None:
        """Begins a leg; `last`: no leg follows."""
        self._simulation, self._is_last = simulation, last
        self.replicas.clear()

    def save(self) -> Saved:
        return {"referee": note({"tests": self._tests}), "used": self._used}

    def load(self, saved: Saved, events: Iterable[Event]) -> None:
        """Resumes from a checkpoint, and from the trace until then."""
        for event in events:
            self._verdict.watch(event)
        self._tests = read_note(saved["referee"])["tests"]
        self._used[:] = saved["used"]

    def record(self, event: Event) -> None:
        if isinstance(event, RunEnded):
            if event.reason == "time limit" and not self._is_last:
                return
            self.over = True
            self._test_finally(event.at)
            self._trace.record(data_used(self._used, event.at))
        self._trace.record(event)
        self._verdict.watch(event)
        if isinstance(event, Tested):
            self._tests += 1
            if self.replicas and self._tests % (2 * len(self.replicas)) == 0:
                self._test_mean(event.at)
            if self._verdict.is_over(event.at):
                assert self._simulation is not None
                self._simulation.stop("target reached")

    def flush(self) -> None:
        self._trace.flush()

    def _test_finally(self, now: float) -> None:
        for name, replica in self.replicas.items():
            measure = self._task.test_finally(replica.model)
            if measure is not None:
                self._trace.record(FinalTested(at=now, node=name, measure=measure))

    def write_model(self, path: Path) -> None:
        """Writes the model of the first live node, or island."""
        assert self._simulation is not None
        here = [name for name in self.replicas if name not in self._simulation.crashed]
        if not here:
            raise TaskError(f"{path}: there is no model to write: no node is left")
        safetensors.torch.save_model(self.replicas[here[0]].model, str(path))

    def _test_mean(self, now: float) -> None:
        """Tests the mean of all replicas, which only a simulation can see at once."""
        replicas = list(self.replicas.values())
        own = replicas[0].read(Quantity.PARAMETERS)
        mean = divide(added([replica.read(Quantity.PARAMETERS) for replica in replicas]), len(replicas))
        replicas[0].write(Quantity.PARAMETERS, mean)
        tested = MeanTested(at=now, measure=replicas[0].test())
        self._trace.record(tested)
        self._verdict.watch(tested)
        replicas[0].write(Quantity.PARAMETERS, own)
