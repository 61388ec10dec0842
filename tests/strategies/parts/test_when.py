import asyncio
from types import SimpleNamespace
from typing import cast

import numpy as np
import pytest

from atoll.strategies import parse_strategy
from atoll.strategies.parts.when import AfterAView, Every
from atoll.strategies.replica import Replica
from atoll.trace import Event, Waited
from atoll.world.base import World
from tests.strategies.nodes import Numbers, VectorReplica, run_strategy
from tests.world.networks import network

NOBODY = cast("Replica", None)

UNEVEN = network(
    '[[node]]\nnames = ["0", "1"]\nstep_s = 0.5\n[[node]]\nnames = ["2"]\nstep_s = 1.5\n'
    '[[link]]\namong = "*"\nlatency_ms = 40'
)


class Waits:
    """How long each node waited."""

    def __init__(self) -> None:
        self.seconds: dict[str, float] = {}

    def record(self, event: Event) -> None:
        if isinstance(event, Waited):
            self.seconds[event.node] = self.seconds.get(event.node, 0.0) + event.at - event.since

    def flush(self) -> None:
        """Nothing is written."""


def moving(world: World) -> tuple[Numbers, Numbers]:
    return np.zeros(2), np.ones(2)


def test_every() -> None:
    assert [asyncio.run(Every(3)(NOBODY, steps, 0)) for steps in range(5)] == [False, False, False, True, True]


def test_paced_lets_the_quick_ones_work_instead_of_waiting() -> None:
    steps_at: dict[str, list[tuple[float, int]]] = {}

    def look(replica: VectorReplica) -> None:
        steps_at.setdefault(replica.world.name, []).append((replica.world.now, replica.steps))

    paced, waited = Waits(), Waits()
    run_strategy(UNEVEN, parse_strategy("allreduce:every=2,direct,paced"), moving, steps=60, look=look, trace=paced)
    done = {name: max((steps for time, steps in seen if time <= 20), default=0) for name, seen in steps_at.items()}
    assert done["0"] >= 2.5 * done["2"]
    run_strategy(UNEVEN, parse_strategy("allreduce:every=2,direct"), moving, steps=60, trace=waited)
    assert paced.seconds["0"] < 0.3 * waited.seconds["0"]
    # An exchange takes two latencies; nobody keeps the slowest waiting for much longer than that.
    assert paced.seconds["2"] / 30 < 3 * 0.04


def test_paced_takes_everybody_along() -> None:
    replicas = run_strategy(UNEVEN, parse_strategy("allreduce:every=2,direct,paced"), moving, steps=40)
    for replica in replicas.values():
        assert (replica.work > 0).all()


@pytest.mark.parametrize("end_s", [20, 60])
def test_paced_learns_on_while_a_peer_is_cut_off(end_s: int) -> None:
    cut = network(
        f'[[node]]\ncount = 3\nstep_s = 0.5\n[[link]]\namong = "*"\nlatency_ms = 20\noutages = [[3, {end_s}]]'
    )
    longest, last = [0.0], dict[str, float]()

    def look(replica: VectorReplica) -> None:
        longest[0] = max(longest[0], replica.world.now - last.get(replica.world.name, 0.0))
        last[replica.world.name] = replica.world.now

    replicas = run_strategy(cut, parse_strategy("allreduce:every=2,direct,paced"), moving, steps=160, look=look)
    assert longest[0] <= 0.5 + 30  # the first round, of which nothing is known, may be waited for that long
    assert all((replica.work >= 100).all() for replica in replicas.values())


def test_after_a_view_models_are_averaged_a_few_times() -> None:
    class Grouped:
        group = SimpleNamespace(view=SimpleNamespace(number=0))

    replica, when = Grouped(), AfterAView()
    assert not asyncio.run(when(cast("Replica", replica), 100, 0)), "all begin alike"
    replica.group.view.number = 3
    asked = [(0, 0), (5, 1), (20, 1), (25, 3), (100, 4)]
    assert [asyncio.run(when(cast("Replica", replica), steps, number)) for steps, number in asked] == [
        True,
        False,
        True,
        True,
        False,
    ]
