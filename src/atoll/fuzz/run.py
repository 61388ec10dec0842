"""Runs strategies under random faults and checks invariants.

A seed draws a network, a strategy and a fault script.  Nodes run the real strategy in the simulated world on a model of
a few hundred numbers, so a run takes a fraction of a second.  The invariants (`holds`):

* no step waits beyond its bound;
* all nodes that took the result of a round hold the same bytes;
* no node counts work that was not done;
* nothing learned is lost: a holder of the run's model never receives one that includes fewer samples, and no exchange
  makes its model much worse than the worst model of all holders;
* push-sum's mass is conserved;
* models stay finite, and buffers are means of the nodes' buffers;
* after all faults, all live nodes are in one view and exchange;
* nothing piles up: messages that nobody receives, transfers, tasks.

A failure is minimised by leaving out faults, and printed with the command that repeats it.
"""

import asyncio
from collections.abc import Generator, Iterable
from contextlib import closing

import torch

from atoll.fuzz.cases import END_S, STRATEGIES, Case, Failure, draw_case
from atoll.fuzz.holds import INVARIANTS, Ended
from atoll.fuzz.islands import check_islands
from atoll.fuzz.replicas import Drawn, Joining, Witness
from atoll.jobs import do_all
from atoll.strategies import parse_strategy
from atoll.strategies.talk import Talk
from atoll.training.drive import Background, Local, drive
from atoll.world import Physics, Simulation
from atoll.world.sim.world import SimWorld

__all__ = ["check", "fuzz", "minimise"]


def check(case: Case) -> str | None:
    """Runs a case and returns the first invariant that did not hold, if any."""
    torch.set_num_threads(1)  # cases are many processes on few cores
    if case.islands:
        return check_islands(case.net, case.seed, case.strategy, case.faults, END_S)
    net, witness = case.net, Witness()
    strategy = parse_strategy(case.strategy)
    talks: dict[str, Talk] = {}
    background: dict[str, int] = {}
    queues: dict[str, int] = {}

    async def program(world: SimWorld) -> None:
        node = Joining(world, founds=world.name == net.node_names[0] and not world.is_late) if case.joins else world
        replica = witness.replicas[world.name] = Drawn(
            node, net.node_names, case.seed, case.size, apart=case.joins, witness=witness, blocks=case.blocks
        )
        talk = talks[world.name] = strategy.start(replica)

        async def boundary(merged: bool) -> None:  # noqa: FBT001 - the shape of a boundary
            if merged:
                witness.merged(replica)
            background[world.name] = len(spawn)
            queues[world.name] = sum(len(connection.queue) for connection in simulation.links.busy)

        async with asyncio.TaskGroup() as group:
            spawn = Background(group)
            talk.prepare()
            talk.start(spawn)
            await drive(Local(replica), talk, spawn, goes_on=lambda: world.now < END_S, boundary=boundary)

    simulation = Simulation(net, seed=case.seed, physics=Physics(), trace=witness, faults=case.faults)
    try:
        simulation.run(program, limit_s=END_S + 60)
    except Exception as error:  # noqa: BLE001 - any error is a failure
        return f"{type(error).__name__}: {error}"
    ended = Ended(case, simulation, witness, talks, background, queues)
    return next((found for look in INVARIANTS for found in look(ended)), None)


def minimise(failure: Failure) -> Failure:
    """The same failure, or another one, with as few faults as possible."""
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
    """Runs the cases of some seeds and yields each when it is done, or its failure.  In between it yields `None`, so
    that progress can be shown.
    """
    with closing(do_all(check, (draw_case(seed, strategies, islands=islands) for seed in seeds), jobs=jobs)) as cases:
        for done in cases:
            if done is None:
                yield None
            else:
                case, what = done
                yield case if what is None else Failure(case, what)
