"""One run: a network, a task, a strategy and a seed go in, a trace comes out."""

import hashlib
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from torch import nn

from atoll.errors import TaskError
from atoll.exchange import Vector
from atoll.network import Network
from atoll.strategy import Quantity, parse_strategy
from atoll.trace import Event, FaultChanged, FinalTested, MeanTested, RunEnded, Tested, Trace, TrainingStarted
from atoll.train.harm import Harm
from atoll.train.node import train
from atoll.train.replica import TrainedReplica
from atoll.train.shards import parse_shards
from atoll.train.task import Task
from atoll.train.tasks import load_task
from atoll.world import Simulation
from atoll.world.faults import Fault
from atoll.world.sim import SimWorld

__all__ = ["IDEAL_STRATEGY", "RunSpec", "check_device", "simulate"]

IDEAL_STRATEGY = "allreduce:quantity=gradient"
"""What all are compared with, on perfect links: gradients averaged every step."""
LINGER = 1.5
"""A run goes on until all nodes have the target, but not beyond this many times what half of them took."""


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

    @property
    def label(self) -> str:
        """What to call it while it runs."""
        what = {"ideal": "the ideal", "perfect": f"{self.strategy} on perfect links"}.get(self.role, self.strategy)
        return f"{what}, seed {self.seed}"

    @property
    def file_name(self) -> str:
        """A name for its trace."""
        safe = "".join(c if c.isalnum() or c in "=.-" else "_" for c in self.strategy)
        return f"{self.role}.{safe}.seed{self.seed}.jsonl"


def simulate(spec: RunSpec, trace_path: Path, *, task: Task | None = None) -> None:
    """Runs in the simulated world, until the target is reached by all, or by half long ago, or the limit.

    Args:
        spec: what to run.
        trace_path: where the trace goes.
        task: used instead of the one that the spec names.
    """
    torch.set_num_threads(1)  # runs are many processes on few cores; threads would only get in each other's way
    task = (task or load_task(spec.task, spec.data)).to(check_device(spec.device))
    strategy = parse_strategy(spec.strategy)
    members = spec.network.node_names
    labels = task.labels
    assert labels is not None
    if labels.ndim != 1:
        raise TaskError(f"task {task.name!r}: expected a label for each example to deal them by")
    dealer = parse_shards(spec.shards)
    shards = dealer.deal(labels.numpy(), len(members), spec.seed)
    pieces = dealer.pieces(len(members))
    optimizer = task.ideal_optimizer if spec.role == "ideal" and task.ideal_optimizer else task.optimizer
    replicas: dict[str, TrainedReplica] = {}
    tester = Tester(task)
    with Trace(trace_path) as trace:
        referee = _Referee(task, trace, replicas, stops=spec.stops)
        simulation = Simulation(spec.network, seed=spec.seed, trace=referee, faults=spec.faults)

        async def program(world: SimWorld) -> None:
            shard = shards[members.index(world.name)]
            replica = TrainedReplica(
                world,
                members,
                task,
                shard,
                seed=spec.seed,
                optimizer=optimizer,
                tester=tester,
                pieces=pieces,
                harm=Harm(world.name, spec.faults, spec.seed),
            )
            replicas[world.name] = replica
            if len(replicas) == 1 and world.now == 0:
                world.record(
                    TrainingStarted(
                        at=0.0,
                        task=task.name,
                        strategy=spec.strategy,
                        role=spec.role,
                        shards=spec.shards,
                        target=task.target,
                        rising=task.rising,
                        parameters=replica.size,
                    )
                )
            await train(replica, task, strategy)

        referee.simulation = simulation
        simulation.run(program, limit_s=spec.limit_s)


def check_device(name: str) -> str:
    """Refuses a device that is not here.  On a GPU, kernels that give the same bytes each time are chosen."""
    try:
        torch.empty(0, device=name)
    except (RuntimeError, AssertionError) as error:
        reason = str(error).splitlines()[0]
        raise TaskError(f"device {name!r}: torch cannot compute there ({reason}); cpu always works") from None
    torch.backends.cudnn.deterministic = True
    return name


class Tester:
    """Tests models, and remembers: after an exchange many nodes hold the same bytes."""

    def __init__(self, task: Task) -> None:
        self._task = task
        self._known: dict[bytes, float] = {}

    def __call__(self, model: nn.Module, values: Vector) -> float:
        digest = hashlib.blake2b(values.tobytes(), digest_size=16).digest()
        if digest not in self._known:
            if len(self._known) >= 64:
                self._known.pop(next(iter(self._known)))
            self._known[digest] = self._task.test_model(model)
        return self._known[digest]


class _Referee:
    """Sees every event on its way to the trace: ends the run when it is decided, and tests the mean of all replicas."""

    def __init__(self, task: Task, trace: Trace, replicas: dict[str, TrainedReplica], *, stops: bool) -> None:
        self._task = task
        self._stops = stops
        self._trace = trace
        self._replicas = replicas
        self._last: dict[str, float] = {}
        self._half_s: float | None = None
        self._tests = 0
        self.simulation: Simulation | None = None

    def record(self, event: Event) -> None:
        if isinstance(event, RunEnded):
            self._test_finally(event.at)
        if isinstance(event, FaultChanged) and event.fault.startswith("crash"):
            for name in event.nodes:
                self._last.pop(name, None)
        self._trace.record(event)
        if isinstance(event, Tested):
            self._last[event.node] = event.measure
            self._tests += 1
            if self._tests % (2 * len(self._replicas)) == 0:
                self._test_mean(event.at)
            self._judge(event.at)

    def flush(self) -> None:
        self._trace.flush()

    def _judge(self, now: float) -> None:
        assert self.simulation is not None
        live = [name for name in self._replicas if name not in self.simulation.crashed]
        arrived = sum(name in self._last and self._task.reached(self._last[name]) for name in live)
        count = len(live)
        if self._half_s is None and 2 * arrived >= count:
            self._half_s = now
        if self._stops and (arrived == count or (self._half_s is not None and now > LINGER * self._half_s)):
            self.simulation.stop("target reached")

    def _test_finally(self, now: float) -> None:
        for name, replica in self._replicas.items():
            measure = self._task.test_finally(replica.model)
            if measure is not None:
                self._trace.record(FinalTested(at=now, node=name, measure=measure))

    def _test_mean(self, now: float) -> None:
        """In simulation somebody can see all replicas at once."""
        replicas = list(self._replicas.values())
        own = replicas[0].read(Quantity.PARAMETERS)
        mean: Vector = np.stack([replica.read(Quantity.PARAMETERS) for replica in replicas]).mean(axis=0)
        replicas[0].write(Quantity.PARAMETERS, mean)
        self._trace.record(MeanTested(at=now, measure=replicas[0].test()))
        replicas[0].write(Quantity.PARAMETERS, own)
