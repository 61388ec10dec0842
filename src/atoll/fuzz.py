"""Runs strategies under random faults and looks whether what must always hold does hold.

A seed draws a network, a strategy and a fault script.  Nodes run the real strategy in the simulated world on a model of
a few hundred numbers, so a run takes a fraction of a second.  All faults but crashes for good end a minute before the
run does.  What must hold:

* no step waits beyond its bound;
* all who took the result of a round hold the same bytes;
* nobody counts work that was not done;
* push-sum's mass is conserved;
* models stay finite;
* when all is well again, all live nodes are in one view and exchange;
* nothing piles up: messages that nobody takes, transfers, tasks.

A failure is made smaller by leaving out faults, and printed with the command that runs it again.
"""

import asyncio
import math
import random
from collections import Counter, defaultdict
from collections.abc import Coroutine, Generator, Iterable, Iterator
from contextlib import closing
from dataclasses import dataclass, replace
from typing import Any, TypeVar

import numpy as np

from atoll.exchange import Vector
from atoll.fuzzislands import check_islands
from atoll.group import Group
from atoll.jobs import do_all
from atoll.network import Network, parse_network
from atoll.saved import Saved
from atoll.seeds import derive, stream
from atoll.strategy import Quantity, Work, parse_strategy
from atoll.strategy.pushes import Pushes
from atoll.strategy.talk import Talk
from atoll.trace import Event, Exchanged, Waited
from atoll.world import Physics, Simulation
from atoll.world.base import World
from atoll.world.faults import MESSAGE_KINDS, Fault
from atoll.world.simworld import SimWorld

__all__ = ["STRATEGIES", "Case", "Failure", "Numbers", "check", "draw_case", "fuzz", "minimise"]

T = TypeVar("T")
SIZE = 300
TROUBLE_S, END_S = 60.0, 120.0
FIRST_WAIT_S, LEAST_WAIT_S = 30.0, 2.0
"""What is promised of waiting; written down here once more, so that the promise is checked and not the code."""

STRATEGIES = (
    "allreduce:every=2",
    "allreduce:every=4,direct,paced",
    "allreduce:overlap,shared,codec=int8",
    "allreduce:quantity=gradient",
    "allreduce:every=2,ring",
    "allreduce:every=2,best",
    "diloco:every=3,codec=int4",
    "diloco:every=2,fragments=3",
    "vrl:codec=int8",
    "vrl:every=4,overlap,codec=bits2",
    "sparseloco:every=2",
    "fda",
    "selsync",
    "noloco:every=3",
    "daso",
    "admm",
    "flexible",
    "powersgd",
    "gossip",
    "gossip:aware,codec=int8",
    "gossip:pushsum",
    "decent",
    "ssp",
    "ssp:bound=0,codec=chunk/4",
)


@dataclass(frozen=True)
class Case:
    """What is run."""

    seed: int
    network: str
    """As TOML."""
    strategy: str
    faults: tuple[Fault, ...]
    islands: bool = False
    """Whether nodes hold a model together."""

    @property
    def net(self) -> Network:
        return parse_network(self.network, name=f"fuzz {self.seed}")

    @property
    def script(self) -> str:
        """The faults as TOML."""
        return "\n".join(fault.as_toml() for fault in self.faults)

    def without(self, number: int) -> "Case":
        """The same with one fault less."""
        left = (*self.faults[:number], *self.faults[number + 1 :])
        return replace(self, faults=left)


@dataclass(frozen=True)
class Failure:
    """What did not hold."""

    case: Case
    what: str


# What is drawn ---


def draw_case(seed: int, strategies: Iterable[str] = STRATEGIES, *, islands: bool = False) -> Case:
    """The case of a seed."""
    draw = stream(seed, "fuzz")
    count = draw.randint(4, 7) if islands else draw.randint(2, 5)
    names = [str(place) for place in range(count)]
    step = draw.choice(["0.5", "0.5", "0.2"])
    slow = f'[[node]]\nnames = ["{names[-1]}"]\nstep_s = {float(step) * draw.choice([1, 2, 3]):g}\n'
    nodes = f"[[node]]\nnames = [{', '.join(map(repr, names[:-1]))}]\nstep_s = {step}\n{slow}"
    link = f"latency_ms = {draw.choice([1, 10, 40, 90])}\nrate_mbps = {draw.choice([1, 5, 20, 100])}\n"
    link += draw.choice(["", "jitter_ms = 5\n", "loss = 0.001\n"])
    if draw.random() < 0.3:
        text = f'hubs = ["hub"]\n{nodes}[[link]]\nbetween = ["?", "hub"]\n{link}'
    else:
        text = f'{nodes}[[link]]\namong = "*"\n{link}'
    faults = tuple(_draw_fault(draw, names) for _ in range(draw.randint(0, 5)))
    return Case(seed, text, draw.choice(list(strategies)), faults, islands)


def _draw_fault(draw: random.Random, names: list[str]) -> Fault:
    kind = draw.choice(["crash", "crash", "stall", "slow", "cut", "partition", "oneway", *sorted(MESSAGE_KINDS)])
    at = round(draw.uniform(0, TROUBLE_S - 1), 2)
    length = draw.choice([0.3, 2, 5, 8, 20, 40])
    until = round(min(TROUBLE_S, at + length * draw.uniform(0.5, 1.5)), 2)
    if kind in ("crash", "stall", "slow"):
        if kind == "crash" and draw.random() < 0.2 and len(names) > 2:
            until = math.inf
        nodes = (draw.choice(names),)
        return Fault(kind, at, until, nodes, factor=draw.choice([2.0, 5.0]) if kind == "slow" else 1.0)
    one, other = draw.sample(names, 2)
    if kind == "oneway":
        pairs = {(one, other)}
    elif kind == "cut":
        pairs = {(one, other), (other, one)}
    else:
        side = {one, *(name for name in names if name not in (one, other) and draw.random() < 0.5)}
        pairs = {(a, b) for a in names for b in names if (a in side) != (b in side)}
    if kind not in MESSAGE_KINDS:
        return Fault(kind, at, until, (), frozenset(pairs))
    seconds = draw.choice([0.2, 1.0, 3.0]) if kind == "delay" else 0.0
    return Fault(kind, at, until, (), frozenset(pairs), share=draw.choice([0.02, 0.1, 0.4]), seconds=seconds)


# What is run ---


class Numbers:
    """A model without torch: parameters and gradients are just numbers."""

    def __init__(self, world: World, members: tuple[str, ...], values: Vector) -> None:
        self.world = world
        self.members = members
        self.rank = members.index(world.name)
        self.group = Group(world, members)
        self.steps = 0
        self.work: Work = np.zeros(len(members), dtype=np.int64)
        self.values = values
        self.gradient: Vector = np.zeros_like(values)

    def read(self, quantity: Quantity) -> Vector:
        return (self.gradient if quantity is Quantity.GRADIENT else self.values).copy()

    def write(self, quantity: Quantity, values: Vector) -> None:
        if quantity is Quantity.GRADIENT:
            self.gradient = values.copy()
        else:
            self.values = values.copy()

    def add(self, quantity: Quantity, change: Vector) -> None:
        self.write(quantity, self.read(quantity) + change)

    def lend(self, share: float) -> bytes:  # noqa: ARG002 - it has no examples
        return b""

    def borrow(self, examples: bytes) -> None:
        """It has none of its own either."""

    def scale_batch(self, factor: float) -> None:
        """Nor batches."""

    def include(self, work: Work) -> None:
        np.maximum(self.work, work, out=self.work)

    @property
    def loss(self) -> float:
        return float(np.square(self.gradient, dtype=np.float64).mean())

    def memory(self) -> Saved:
        return {}

    def take_over(self, work: Work, memory: Saved) -> None:  # noqa: ARG002 - there is no optimiser
        self.include(work)


class _Drawn(Numbers):
    """Every node is drawn to a place of its own."""

    def __init__(self, world: SimWorld, members: tuple[str, ...], seed: int) -> None:
        super().__init__(world, members, np.zeros(SIZE, dtype=np.float32))
        draw = np.random.default_rng(derive(seed, "place", world.name) % 2**32)
        self._place: Vector = draw.normal(size=SIZE).astype(np.float32)

    def compute_gradient(self) -> None:
        self.gradient = self.values - self._place
        self.work[self.rank] += 1

    def update(self) -> None:
        self.values = self.values - np.float32(0.05) * self.gradient
        self.steps += 1


class _Witness:
    """Sees every event."""

    def __init__(self) -> None:
        self.exchanged: list[Exchanged] = []
        self.waited: list[Waited] = []

    def record(self, event: Event) -> None:
        if isinstance(event, Exchanged):
            self.exchanged.append(event)
        elif isinstance(event, Waited):
            self.waited.append(event)

    def flush(self) -> None:
        """Nothing is written."""


def check(case: Case) -> str | None:
    """Runs a case and says what did not hold, if anything."""
    if case.islands:
        return check_islands(case.net, case.seed, case.strategy, case.faults, END_S)
    net, witness = case.net, _Witness()
    strategy = parse_strategy(case.strategy)
    replicas: dict[str, _Drawn] = {}
    done: Counter[str] = Counter()
    talks: dict[str, Talk] = {}
    background: dict[str, int] = {}
    queues: list[int] = []

    async def program(world: SimWorld) -> None:
        replica = replicas[world.name] = _Drawn(world, net.node_names, case.seed)
        replica.work[replica.rank] = done[world.name]  # a node that begins anew has not undone what it did
        talk = talks[world.name] = strategy.talk(replica)
        tasks: set[asyncio.Task[Any]] = set()

        async with asyncio.TaskGroup() as group:

            def spawn(work: Coroutine[Any, Any, T]) -> asyncio.Task[T]:
                task = group.create_task(work)
                tasks.add(task)
                task.add_done_callback(tasks.discard)
                return task

            talk.start(spawn)

            def compute() -> None:
                replica.compute_gradient()
                done[world.name] += 1

            while world.now < END_S:
                await world.compute(compute)
                await talk.after_gradient()
                replica.update()
                await talk.after_step()
            background[world.name] = len(tasks)
            queues.append(sum(len(connection.queue) for connection in simulation.links.busy))
            for task in list(tasks):
                task.cancel()

    simulation = Simulation(net, seed=case.seed, physics=Physics(), trace=witness, faults=case.faults)
    try:
        simulation.run(program, limit_s=END_S + 60)
    except Exception as error:  # noqa: BLE001 - whatever it is, it should not be
        return f"{type(error).__name__}: {error}"
    ended = _Ended(case, simulation, witness, replicas, done, talks, background, queues)
    return next((found for look in _INVARIANTS for found in look(ended)), None)


@dataclass(frozen=True)
class _Ended:
    """A run that is over."""

    case: Case
    simulation: Simulation
    witness: _Witness
    replicas: dict[str, _Drawn]
    done: Counter[str]
    talks: dict[str, Talk]
    background: dict[str, int]
    """How many tasks each node had running when it ended."""
    queues: list[int]
    """How many transfers there were then."""

    @property
    def names(self) -> tuple[str, ...]:
        return self.simulation.node_names

    @property
    def live(self) -> list[str]:
        return [name for name in self.names if name not in self.simulation.crashed]


def _waits_are_bounded(run: _Ended) -> Iterator[str]:
    case = run.case
    slack = 5 * max(node.step_s for node in case.net.nodes)
    slack += sum(fault.until - fault.at for fault in case.faults if fault.kind == "stall")
    took: dict[str, list[float]] = defaultdict(list)
    exchanged = iter(sorted(run.witness.exchanged, key=lambda event: event.at))
    upcoming = next(exchanged, None)
    for wait in sorted(run.witness.waited, key=lambda event: event.at):
        while upcoming and upcoming.at <= wait.since:
            took[upcoming.node].append(upcoming.at - upcoming.since)
            upcoming = next(exchanged, None)
        bound = FIRST_WAIT_S if not took[wait.node] else max(LEAST_WAIT_S, 2 * max(took[wait.node]))
        if wait.at - wait.since > bound + slack:
            yield f"{wait.node} waited {wait.at - wait.since:.1f} s for {wait.why}, bound {bound:.1f} s"


def _takers_of_a_round_hold_the_same(run: _Ended) -> Iterator[str]:
    if run.case.strategy.startswith("noloco"):
        return  # its pairs hold different models
    digests = defaultdict(set)
    for exchange in run.witness.exchanged:
        if exchange.digest:
            digests[exchange.name].add(exchange.digest)
    for name, found in digests.items():
        if len(found) > 1:
            yield f"{name}: those who took it hold {len(found)} different models"


def _work_was_done(run: _Ended) -> Iterator[str]:
    for name in run.live:
        for counted, other in zip(run.replicas[name].work, run.names, strict=True):
            if counted > run.done[other]:
                yield f"{name} counts {counted} steps of {other}, who did {run.done[other]}"


def _models_are_finite(run: _Ended) -> Iterator[str]:
    for name in run.live:
        if not np.isfinite(run.replicas[name].values).all():
            yield f"{name}: the model is not finite"


def _all_meet_again(run: _Ended) -> Iterator[str]:
    if len(run.live) < 2:
        return
    late = [exchange for exchange in run.witness.exchanged if exchange.at > END_S - 25]
    silent = [name for name in run.live if not any(exchange.node == name for exchange in late)]
    if silent and not run.case.strategy.startswith(("none", "fda", "selsync")):
        yield f"{', '.join(silent)}: no exchange in the last 25 s, though all is well"
    if any(exchange.name.startswith("round") for exchange in late):
        views = {run.replicas[name].group.view for name in run.live}
        if len(views) > 1:
            yield f"different views at the end: {', '.join(sorted(view.name for view in views))}"
        elif set(next(iter(views)).members) != set(run.live):
            yield f"the last view is of {', '.join(next(iter(views)).members)}, and here are {', '.join(run.live)}"


def _mass_is_conserved(run: _Ended) -> Iterator[str]:
    talks = [talk for talk in run.talks.values() if isinstance(talk, Pushes)]
    if not run.case.strategy.startswith("gossip:pushsum") or any(fault.kind == "crash" for fault in run.case.faults):
        return
    here, under_way = sum(talk.mass for talk in talks), sum(talk.mass_under_way for talk in talks)
    if not here - 1e-6 <= len(talks) <= here + under_way + 1e-6:
        yield f"the mass of {len(talks)} nodes is {here:.4f}, and {under_way:.4f} under way"


def _nothing_piles_up(run: _Ended) -> Iterator[str]:
    most = 8 * len(run.names)
    for name, world in run.simulation.worlds.items():
        left = world.messages_left()
        if left > most:
            yield f"{name}: {left} messages are left that nobody takes"
    for name, tasks in run.background.items():
        if tasks > most:
            yield f"{name}: {tasks} tasks are running"
    transfers = max(run.queues, default=0)
    if transfers > most * len(run.names):
        yield f"{transfers} transfers are under way"


_INVARIANTS = (
    _waits_are_bounded,
    _takers_of_a_round_hold_the_same,
    _work_was_done,
    _models_are_finite,
    _all_meet_again,
    _mass_is_conserved,
    _nothing_piles_up,
)


def minimise(failure: Failure) -> Failure:
    """The same failure, or another one, with as few faults as it takes."""
    found = failure
    number = 0
    while number < len(found.case.faults):
        smaller = found.case.without(number)
        what = check(smaller)
        if what is None:
            number += 1
        else:
            found = Failure(smaller, what)
    return found


def fuzz(
    seeds: Iterable[int], strategies: tuple[str, ...] = STRATEGIES, *, jobs: int = 1, islands: bool = False
) -> Generator[Failure | Case | None, None, None]:
    """Runs the cases of some seeds, as they get done: those that went well, and what failed.  In between `None`, so
    that progress can be shown.
    """
    with closing(do_all(check, (draw_case(seed, strategies, islands=islands) for seed in seeds), jobs=jobs)) as cases:
        for done in cases:
            if done is None:
                yield None
            else:
                case, what = done
                yield case if what is None else Failure(case, what)
