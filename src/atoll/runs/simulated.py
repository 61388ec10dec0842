"""One run: a network, a task, a strategy and a seed go in, a trace comes out."""

import hashlib
import math
import shutil
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn

from atoll.errors import CheckpointError, TaskError
from atoll.islands.assembly import Assembly
from atoll.islands.curriculum import TaskLesson
from atoll.islands.layout import Layout, lay_out
from atoll.islands.node import IslandNode
from atoll.islands.settings import parse_islands
from atoll.islands.settlement import Settlement
from atoll.network import Network
from atoll.runs.verdict import Verdict
from atoll.state import Saved, note, read_note
from atoll.strategies import Quantity, parse_strategy
from atoll.trace import (
    CheckpointSaved,
    Event,
    FaultChanged,
    FinalTested,
    MeanTested,
    RunEnded,
    Tested,
    Trace,
)
from atoll.training.checkpoint import TRACE, Identity, forget, latest, read_run, write_run
from atoll.training.loop import train
from atoll.training.parts import Parts, data_used
from atoll.training.task import Task
from atoll.training.tasks import load_task
from atoll.vectors import Vector
from atoll.world import Simulation
from atoll.world.base import World
from atoll.world.faults import Fault
from atoll.world.sim.world import SimWorld

__all__ = ["IDEAL_STRATEGY", "RunSpec", "check_device", "simulate"]

IDEAL_STRATEGY = "allreduce:quantity=gradient"
"""What all are compared with, on perfect links: gradients averaged every step."""


@dataclass(frozen=True, kw_only=True)
class RunSpec:
    """Everything that a run depends on."""

    network: Network
    task: str
    data: Path | None = None
    strategy: str
    shards: str = "dirichlet:0.3"
    seed: int = 0
    limit_s: float = 600.0
    role: str = "strategy"
    device: str = "cpu"
    """Where torch computes; it changes no virtual time."""
    faults: tuple[Fault, ...] = ()
    stops: bool = True
    """Whether the run ends when the target is reached; else it goes on until the limit."""
    checkpoints: Path | None = None
    """Where checkpoints go."""
    checkpoint_s: float = 60.0
    """How often."""
    resume: bool = False
    """Whether to go on from the last one."""
    script: tuple[str, ...] = ()
    """A user's own script and its arguments, instead of a task."""
    islands: str = ""
    """Which nodes hold the model together (`parse_islands`); empty: every node holds all of it."""

    @property
    def identity(self) -> Identity:
        """What a checkpoint of it must agree with."""
        network = hashlib.blake2b(repr(self.network).encode(), digest_size=8).hexdigest()
        return {
            "task": self.task,
            "strategy": self.strategy,
            "shards": self.shards,
            "seed": self.seed,
            "network": f"{self.network.name} {network}",
            "faults": "\n".join(fault.as_toml() for fault in self.faults),
            "checkpoint every": self.checkpoint_s,
            "islands": self.islands,
        }

    @property
    def label(self) -> str:
        """What to call it while it runs."""
        what = {"ideal": "the ideal", "perfect": f"{self.strategy} on perfect links"}.get(self.role, self.strategy)
        return f"{what}, seed {self.seed}"

    @property
    def file_name(self) -> str:
        """A name for its trace."""
        what = f"{self.strategy}.{self.islands}" if self.islands else self.strategy
        safe = "".join(c if c.isalnum() or c in "=.-" else "_" for c in what)
        return f"{self.role}.{safe}.seed{self.seed}.jsonl"


def simulate(spec: RunSpec, trace_path: Path, *, task: Task | None = None, layout: Layout | None = None) -> None:
    """Runs in the simulated world, until the target is reached by all, or by half long ago, or the limit.

    A run with checkpoints is one of several legs: every so often all nodes are stopped where they are, and go on from
    what they were at their last step boundary.  So a run that is resumed writes the bytes that the one before it would
    have written.

    Args:
        spec: what to run.
        trace_path: where the trace goes.
        task: used instead of the one that the spec names.
        layout: of islands, used instead of the one that the spec says.
    """
    torch.set_num_threads(1)  # runs are many processes on few cores; threads would only get in each other's way
    task = (task or load_task(spec.task, spec.data)).to(check_device(spec.device))
    in_islands = spec.islands and spec.role != "ideal"
    course = _IslandCourse(spec, task, layout) if in_islands else _Course(spec, task)
    begin_s, nodes, known = 0.0, dict[str, Saved](), Saved()
    if spec.resume:
        if spec.checkpoints is None:
            raise CheckpointError("there is nothing to resume from: expected where the checkpoints are")
        place = latest(spec.checkpoints)
        begin_s, nodes, known = read_run(place, spec.network.node_names, spec.identity)
        if begin_s >= spec.limit_s:
            raise CheckpointError(
                f"{place}: is at {begin_s:g} s, and the limit is {spec.limit_s:g} s: expected a later one"
            )
        shutil.copyfile(place / TRACE, trace_path)
    elif spec.checkpoints:
        forget(spec.checkpoints)
    with Trace(trace_path, append=spec.resume) as trace:
        referee = _Referee(task, trace, course.parts.used, stops=spec.stops)
        if known:
            referee.load(known)
        while True:
            until_s = spec.limit_s
            if spec.checkpoints:
                until_s = min(until_s, spec.checkpoint_s * (math.floor(begin_s / spec.checkpoint_s + 1e-9) + 1))
            nodes = course.run(referee, begin_s, until_s, nodes)
            if referee.over or spec.checkpoints is None:
                break
            begin_s = until_s
            trace.record(CheckpointSaved(at=begin_s))
            trace.flush()
            write_run(spec.checkpoints, begin_s, nodes, referee.save(), spec.identity, trace=trace_path)


class _Course:
    """What all legs of a run have in common."""

    def __init__(self, spec: RunSpec, task: Task, members: tuple[str, ...] = ()) -> None:
        self._spec = spec
        self._task = task
        self._strategy = parse_strategy(spec.strategy)
        self.members = members or spec.network.node_names
        self.parts = Parts(task, self.members, shards=spec.shards, seed=spec.seed, role=spec.role, faults=spec.faults)

    def run(self, referee: "_Referee", begin_s: float, until_s: float, nodes: dict[str, Saved]) -> dict[str, Saved]:
        """Runs one leg.

        Args:
            referee: sees all of it.
            begin_s: when it begins.
            until_s: when it ends, at the latest.
            nodes: what the nodes were when the one before it ended.

        Returns:
            what they are now, if there are to be checkpoints: all that are here, each at its last step boundary.
        """
        spec, task = self._spec, self._task
        simulation = Simulation(spec.network, seed=spec.seed, trace=referee, faults=spec.faults)
        states: dict[str, Saved] = dict(nodes)
        referee.begin(simulation, last=until_s >= spec.limit_s)

        async def program(world: SimWorld) -> None:
            replica = self.parts.replica(world)
            if not referee.replicas and world.now == 0:
                world.record(self.parts.started(spec.strategy, replica.size))
            referee.replicas[world.name] = replica
            resume = nodes.get(world.name) if world.now == begin_s else None
            if resume is None:
                states.pop(world.name, None)  # what it was before it crashed is gone

            def remember(save: Callable[[], Saved]) -> None:
                states[world.name] = save()

            await train(
                replica,
                task,
                self._strategy,
                resume=resume,
                at_boundary=remember if spec.checkpoints else None,
            )

        simulation.run(program, limit_s=until_s, begin_s=begin_s)
        return {name: saved for name, saved in states.items() if name not in simulation.crashed}


class _IslandCourse(_Course):
    """The same where islands hold the model."""

    def __init__(self, spec: RunSpec, task: Task, layout: Layout | None) -> None:
        self._layout = layout or lay_out(spec.network, task, parse_islands(spec.islands), seed=spec.seed)
        super().__init__(spec, task, tuple(self._layout.islands))

    def run(self, referee: "_Referee", begin_s: float, until_s: float, nodes: dict[str, Saved]) -> dict[str, Saved]:
        spec, task, layout = self._spec, self._task, self._layout
        simulation = Simulation(spec.network, seed=spec.seed, trace=referee, faults=spec.faults)
        states: dict[str, Saved] = dict(nodes)
        referee.begin(simulation, last=until_s >= spec.limit_s)
        whole: dict[tuple[str, ...], Assembly] = {}
        begun: list[str] = []

        def seated(world: World, order: tuple[str, ...], layers: nn.Module) -> Assembly:
            """The whole model of a node's island; of the one that it was in before there is none any more."""
            for old in [each for each in whole if world.name in each and each != order]:
                if referee.replicas.get(old[-1]) is whole.pop(old):
                    del referee.replicas[old[-1]]
            assembly = whole.setdefault(order, Assembly(order, self.parts.tester, rising=task.rising))
            assembly.put(world, layers)
            if assembly.is_whole:
                referee.replicas[order[-1]] = assembly
            return assembly

        async def program(world: SimWorld) -> None:
            lesson = TaskLesson(task, self.parts, seed=spec.seed)
            if not begun and world.now == 0:
                world.record(self.parts.started(spec.strategy, lesson.size))
                world.record(layout.formed())
            begun.append(world.name)

            def remember(save: Callable[[], Saved]) -> None:
                states[world.name] = save()

            node = IslandNode(
                world,
                layout.survey,
                layout.settings,
                lesson,
                self._strategy,
                first=Settlement.first(layout),
                seated=seated,
                at_boundary=remember if spec.checkpoints else None,
            )
            if world.name in nodes and world.now == begin_s:
                node.load(nodes[world.name])
            elif world.name in nodes:  # it has crashed since, and has what it wrote before
                node.stock.shelve(nodes[world.name]["layers"].tobytes())
            await node.run()

        simulation.run(program, limit_s=until_s, begin_s=begin_s)
        return {name: saved for name, saved in states.items() if name not in simulation.crashed}


def check_device(name: str) -> str:
    """Refuses a device that is not here.  On a GPU, kernels that give the same bytes each time are chosen."""
    try:
        torch.empty(0, device=name)
    except (RuntimeError, AssertionError) as error:
        reason = str(error).splitlines()[0]
        raise TaskError(f"device {name!r}: torch cannot compute there ({reason}); cpu always works") from None
    torch.backends.cudnn.deterministic = True
    return name


class _Judged(Protocol):
    """A model that a referee can see."""

    @property
    def model(self) -> nn.Module: ...

    def read(self, quantity: Quantity) -> Vector: ...

    def write(self, quantity: Quantity, values: Vector) -> None: ...

    def test(self) -> float: ...


class _Referee:
    """Sees every event on its way to the trace: ends the run when it is decided, and tests the mean of all replicas."""

    def __init__(self, task: Task, trace: Trace, used: NDArray[np.int64], *, stops: bool) -> None:
        self._task = task
        self._used = used
        self._trace = trace
        self.replicas: dict[str, _Judged] = {}
        """The nodes of this leg that have begun."""
        self._verdict = Verdict(task.reached, stops=stops)
        self._tests = 0
        self._simulation: Simulation | None = None
        self._is_last = True
        self.over = False

    def begin(self, simulation: Simulation, *, last: bool) -> None:
        """A leg begins, and whether there is none after it."""
        self._simulation, self._is_last = simulation, last
        self.replicas.clear()

    def save(self) -> Saved:
        known = {"verdict": self._verdict.save(), "tests": self._tests}
        return {"referee": note(known), "used": self._used}

    def load(self, saved: Saved) -> None:
        found = read_note(saved["referee"])
        self._verdict.load(found["verdict"])
        self._tests = found["tests"]
        self._used[:] = saved["used"]

    def record(self, event: Event) -> None:
        if isinstance(event, RunEnded):
            if event.reason == "time limit" and not self._is_last:
                return
            self.over = True
            self._test_finally(event.at)
            self._trace.record(data_used(self._used, event.at))
        if isinstance(event, FaultChanged) and event.fault.startswith("crash"):
            for name in event.nodes:
                self._verdict.begins_anew(name)
        self._trace.record(event)
        if isinstance(event, Tested):
            self._verdict.tested(event.node, event.measure)
            self._tests += 1
            if self.replicas and self._tests % (2 * len(self.replicas)) == 0:
                self._test_mean(event.at)
            self._judge(event.at)

    def flush(self) -> None:
        self._trace.flush()

    def _judge(self, now: float) -> None:
        assert self._simulation is not None
        live = [name for name in self.replicas if name not in self._simulation.crashed]
        if self._verdict.is_over(now, live):
            self._simulation.stop("target reached")

    def _test_finally(self, now: float) -> None:
        for name, replica in self.replicas.items():
            measure = self._task.test_finally(replica.model)
            if measure is not None:
                self._trace.record(FinalTested(at=now, node=name, measure=measure))

    def _test_mean(self, now: float) -> None:
        """In simulation somebody can see all replicas at once."""
        replicas = list(self.replicas.values())
        own = replicas[0].read(Quantity.PARAMETERS)
        mean: Vector = np.stack([replica.read(Quantity.PARAMETERS) for replica in replicas]).mean(axis=0)
        replicas[0].write(Quantity.PARAMETERS, mean)
        self._trace.record(MeanTested(at=now, measure=replicas[0].test()))
        replicas[0].write(Quantity.PARAMETERS, own)
