"""Islands under random faults, and their invariants.

A few nodes, none of which can hold the model, form islands and train it under the faults of a case.  All faults but
permanent crashes end some time before the run does.  The invariants:

* nothing raises;
* islands without a fault continue: no stage of theirs is idle for longer than two seconds;
* models stay finite, and no stage keeps more batches or weights than it may;
* after all faults, all live nodes are in one view and have computed the same plan, every node with a seat in it
  works, and islands exchange;
* nothing piles up: messages that nobody receives, transfers.
"""

import dataclasses
import itertools
import math
from collections import Counter, defaultdict
from collections.abc import Iterator
from functools import cache, partial

import torch
from torch import nn
from torch.optim import SGD

from atoll.errors import TaskError
from atoll.islands.curriculum import TaskCurriculum
from atoll.islands.layout import Layout, lay_out
from atoll.islands.node import IslandNode
from atoll.islands.settings import parse_islands
from atoll.islands.settlement import Settlement
from atoll.network import Network
from atoll.strategies import parse_strategy
from atoll.trace import Computed, Event, Exchanged, SeatTaken, StageReported
from atoll.training.shares import Parts
from atoll.training.task import Examples, Task
from atoll.world import Simulation
from atoll.world.faults import Fault
from atoll.world.sim.world import SimWorld

__all__ = ["ISLAND_STRATEGIES", "check_islands"]

ISLAND_STRATEGIES = (
    "allreduce:every=4,overlap",
    "allreduce:every=8,overlap,codec=int8",
    "vrl:every=4,overlap",
    "allreduce:every=4",
    "none",
)
LONGEST_S = 2.0
"""The promised bound of idle time, repeated here so that the promise is checked and not the code."""
WELL_S = 20.0
"""The time before the end by which all nodes must have recovered."""
MEMORY = (2400, 2800)
"""The memory of nodes in bytes, alternating between cases; the whole model takes 4 kB."""


@cache
def _task() -> Task:
    draw = torch.Generator().manual_seed(1)
    inputs = torch.randn(120, 6, generator=draw)
    targets = inputs[:, :3].argmax(1)
    return Task(
        name="fuzz",
        model=_model,
        optimizer=partial(SGD, lr=0.05, momentum=0.9),
        target=2.0,
        batch=8,
        train=Examples(inputs[:100], targets[:100]),
        test=Examples(inputs[100:], targets[100:]),
        labels=targets[:100],
    )


def _model() -> nn.Sequential:
    layers: list[nn.Module] = []
    for _ in range(4):
        layers += [nn.Linear(6, 6), nn.Tanh()]
    return nn.Sequential(*layers, nn.Linear(6, 3))


class _Witness:
    """Collects events for the checks."""

    def __init__(self) -> None:
        self.computed: dict[str, list[Computed]] = defaultdict(list)
        self.exchanged: list[Exchanged] = []
        self.reported: list[StageReported] = []
        self.seats: Counter[str] = Counter()

    def record(self, event: Event) -> None:
        if isinstance(event, Computed):
            self.computed[event.node].append(event)
        elif isinstance(event, Exchanged):
            self.exchanged.append(event)
        elif isinstance(event, StageReported):
            self.reported.append(event)
        elif isinstance(event, SeatTaken):
            self.seats[event.node] += 1

    def flush(self) -> None:
        """Nothing is written."""


def check_islands(net: Network, seed: int, strategy: str, faults: tuple[Fault, ...], end_s: float) -> str | None:
    """Runs a case and returns the first invariant that did not hold, if any."""
    torch.set_num_threads(1)  # many processes on few cores, and small tensors
    task, witness = _task(), _Witness()
    net = dataclasses.replace(
        net, nodes=tuple(dataclasses.replace(node, memory_bytes=MEMORY[seed % 2]) for node in net.nodes)
    )
    try:
        layout = lay_out(net, task, parse_islands("auto"), seed=seed)
    except TaskError:
        return None  # too few nodes
    parts = Parts(task, tuple(layout.islands), shards="iid", seed=seed)
    nodes: dict[str, IslandNode] = {}

    async def program(world: SimWorld) -> None:
        curriculum = TaskCurriculum(task, parts, seed=seed)
        first, settings = Settlement.first(layout), layout.settings
        nodes[world.name] = IslandNode(
            world, layout.survey, settings, curriculum, parse_strategy(strategy), first=first
        )
        await nodes[world.name].run()

    simulation = Simulation(net, seed=seed, trace=witness, faults=faults)
    try:
        with torch.random.fork_rng():
            simulation.run(program, limit_s=end_s)
    except Exception as error:  # noqa: BLE001 - any error is a failure
        return f"{type(error).__name__}: {error}"
    ended = _Ended(net, layout, faults, strategy, end_s, simulation, witness, nodes)
    return next((found for look in _INVARIANTS for found in look(ended)), None)


@dataclasses.dataclass(frozen=True)
class _Ended:
    """A run that has ended."""

    net: Network
    layout: Layout
    faults: tuple[Fault, ...]
    strategy: str
    end_s: float
    simulation: Simulation
    witness: _Witness
    nodes: dict[str, IslandNode]

    @property
    def live(self) -> list[str]:
        return [name for name in self.net.node_names if name not in self.simulation.crashed]

    @property
    def slack_s(self) -> float:
        """The longest time of a pass."""
        return 2 * max(node.step_s for node in self.net.nodes)


def _untouched_islands_go_on(run: _Ended) -> Iterator[str]:
    touched = {name for fault in run.faults for name in fault.nodes}
    touched |= {name for fault in run.faults for pair in fault.pairs for name in pair}
    for order in run.layout.islands.values():
        if touched & set(order) or any(run.witness.seats[name] > 1 for name in order):
            continue  # a fault affected it, or it was formed again to admit a node
        if "overlap" not in run.strategy and run.strategy != "none":
            continue  # such strategies wait for others
        for name in order:
            passes = run.witness.computed[name]
            full = [each for each in passes if each.at > 10]
            for before, after in itertools.pairwise(full):
                if after.since - before.at > LONGEST_S + run.slack_s:
                    yield f"{name} was idle for {after.since - before.at:.1f} s from {before.at:.1f} s on"


def _bounds_hold(run: _Ended) -> Iterator[str]:
    for name in run.live:
        node = run.nodes[name]
        if node.stage is None:
            continue
        if not all(torch.isfinite(each).all() for each in node.stage.layers.parameters()):
            yield f"{name}: the model is not finite"
    for report in run.witness.reported:
        if report.stale_most >= report.holds or report.versions > report.holds:
            yield f"{report.node}: {report.stale_most} updates late, {report.versions} versions, holds {report.holds}"


def _all_is_well_again(run: _Ended) -> Iterator[str]:
    views = {run.nodes[name].council.view for name in run.live}
    if len(views) > 1:
        yield f"different views at the end: {', '.join(sorted(view.name for view in views))}"
        return
    if set(next(iter(views)).members) != set(run.live):
        yield f"the last view is of {', '.join(next(iter(views)).members)}, but live are {', '.join(run.live)}"
    plans = {tuple(sorted(run.nodes[name].seats.items())) for name in run.live}
    if len({str(plan) for plan in plans}) > 1:
        yield "nodes of one view have different plans"
        return
    seats = run.nodes[run.live[0]].seats
    for name in seats:
        passes = run.witness.computed[name]
        if not passes or passes[-1].at < run.end_s - LONGEST_S - 2 * run.slack_s:
            yield f"{name} has a seat, but did nothing after {passes[-1].at if passes else math.nan:.1f} s"
    islands = {seat.island for seat in seats.values()}
    late = [event for event in run.witness.exchanged if event.at > run.end_s - WELL_S]
    if len(islands) > 1 and run.strategy != "none" and not late:
        yield f"{len(islands)} islands, and no exchange in the last {WELL_S:g} s"


def _nothing_piles_up(run: _Ended) -> Iterator[str]:
    most = 40 * len(run.net)
    for name in run.live:
        left = run.simulation.worlds[name].messages_left()
        if left > most:
            yield f"{name}: {left} messages are left that nobody receives"
    transfers = sum(len(connection.queue) for connection in run.simulation.links.busy)
    if transfers > most:
        yield f"{transfers} transfers are in flight"


_INVARIANTS = (_untouched_islands_go_on, _bounds_hold, _all_is_well_again, _nothing_piles_up)
