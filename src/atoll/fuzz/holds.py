"""Invariants of a run, whatever happens to its nodes and links."""

from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass

from atoll.fuzz.cases import END_S, Case
from atoll.fuzz.replicas import Witness
from atoll.strategies.pushes import PushTalk
from atoll.strategies.rounds.exchange import MOST_UNDER_WAY
from atoll.strategies.talk import Talk
from atoll.vectors import all_finite
from atoll.world import Simulation

__all__ = ["INVARIANTS", "Ended"]

FIRST_WAIT_S, LEAST_WAIT_S = 30.0, 2.0
"""The promised bounds of waiting, repeated here so that the promise is checked and not the code."""


@dataclass(frozen=True)
class Ended:
    """A run that has ended."""

    case: Case
    simulation: Simulation
    witness: Witness
    talks: dict[str, Talk]
    background: dict[str, int]
    """How many tasks each node had running when it ended."""
    queues: dict[str, int]
    """How many transfers were in flight then."""

    @property
    def names(self) -> tuple[str, ...]:
        return self.simulation.node_names

    @property
    def live(self) -> list[str]:
        return [name for name in self.names if name not in self.simulation.crashed]


def _waits_are_bounded(run: Ended) -> Iterator[str]:
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


def _takers_of_a_round_hold_the_same(run: Ended) -> Iterator[str]:
    if run.case.strategy.startswith("noloco"):
        return  # its pairs hold different models
    digests = defaultdict(set)
    for exchange in run.witness.exchanged:
        if exchange.digest:
            digests[exchange.name].add(exchange.digest)
    for name, found in digests.items():
        if len(found) > 1:
            yield f"{name}: its takers hold {len(found)} different models"


def _work_was_done(run: Ended) -> Iterator[str]:
    for name in run.live:
        for counted, other in zip(run.witness.replicas[name].work, run.names, strict=True):
            if counted > run.witness.done[other]:
                yield f"{name} counts {counted} steps of {other}, which did {run.witness.done[other]}"


def _nothing_learned_is_lost(run: Ended) -> Iterator[str]:
    yield from run.witness.complaints


def _models_are_finite(run: Ended) -> Iterator[str]:
    for name in run.live:
        if not all_finite(run.witness.replicas[name].values):
            yield f"{name}: the model is not finite"


def _buffers_are_means(run: Ended) -> Iterator[str]:
    """Each node's buffers tend to a value between 1 and the number of nodes, so every mean of them is in that range."""
    least, most = 0.999, 1.001 * len(run.names)
    for name in run.live:
        up, down = run.witness.replicas[name].buffers.tolist()
        if not (least <= up <= most and least <= -down <= most):
            yield f"{name}: the buffers are {up}, {down}, which are not a mean of the nodes' buffers"


def _all_meet_again(run: Ended) -> Iterator[str]:
    if len(run.live) < 2:
        return
    late = [exchange for exchange in run.witness.exchanged if exchange.at > END_S - 25]
    silent = [name for name in run.live if not any(exchange.node == name for exchange in late)]
    if silent and not run.case.strategy.startswith(("none", "fda", "selsync")):
        yield f"{', '.join(silent)}: no exchange in the last 25 s, though no fault is left"
    if any(exchange.name.startswith("round") for exchange in late):
        views = {run.witness.replicas[name].group.view for name in run.live}
        if len(views) > 1:
            yield f"different views at the end: {', '.join(sorted(view.name for view in views))}"
        elif set(next(iter(views)).members) != set(run.live):
            yield f"the last view is of {', '.join(next(iter(views)).members)}, but live are {', '.join(run.live)}"


def _mass_is_conserved(run: Ended) -> Iterator[str]:
    talks = [talk for talk in run.talks.values() if isinstance(talk, PushTalk)]
    if not run.case.strategy.startswith("gossip:pushsum") or any(fault.kind == "crash" for fault in run.case.faults):
        return
    here, under_way = sum(talk.mass for talk in talks), sum(talk.mass_under_way for talk in talks)
    if not here - 1e-6 <= len(talks) <= here + under_way + 1e-6:
        yield f"the mass of {len(talks)} nodes is {here:.4f}, and {under_way:.4f} in flight"


def _nothing_piles_up(run: Ended) -> Iterator[str]:
    most = 8 * len(run.names) * min(run.case.blocks, MOST_UNDER_WAY)  # of a round that was given up
    for name, world in run.simulation.worlds.items():
        left = world.messages_left()
        if left > most:
            yield f"{name}: {left} messages are left that nobody receives"
    for name, tasks in run.background.items():
        if tasks > most:
            yield f"{name}: {tasks} tasks are running"
    transfers = max(run.queues.values(), default=0)
    if transfers > most * len(run.names):
        yield f"{transfers} transfers are in flight"


INVARIANTS = (
    _waits_are_bounded,
    _takers_of_a_round_hold_the_same,
    _work_was_done,
    _nothing_learned_is_lost,
    _models_are_finite,
    _buffers_are_means,
    _all_meet_again,
    _mass_is_conserved,
    _nothing_piles_up,
)
