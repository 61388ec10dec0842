"""What holds in every world: the same node programs, with the same results, simulated and over real sockets."""

from collections.abc import Callable, Coroutine
from typing import Any

import pytest

from atoll.network import parse_network
from atoll.world import Simulation
from atoll.world.base import World
from tests.world.live.loopback import run_live
from tests.world.programs import PROGRAMS

NAMES = ("0", "1", "2")
NETWORK = """
[[node]]
names = ["0", "1", "2"]
step_s = 0.01
[[link]]
among = "*"
latency_ms = 1
rate_mbps = 500
"""
Program = Callable[[World], Coroutine[Any, Any, Any]]


def _simulated(program: Program) -> dict[str, Any]:
    return Simulation(parse_network(NETWORK, name="three"), seed=1).run(program)


def _live(program: Program) -> dict[str, Any]:
    return run_live(program, NAMES)


def _live_in_the_clear(program: Program) -> dict[str, Any]:
    return run_live(program, NAMES, encrypted=False)


@pytest.mark.parametrize("program", PROGRAMS, ids=lambda program: program.__name__)
@pytest.mark.parametrize("run", [_live, _live_in_the_clear], ids=["live", "live in the clear"])
def test_worlds_agree(run: Callable[[Program], dict[str, Any]], program: Program) -> None:
    found = run(program)
    assert found == _simulated(program)
    assert set(found) == set(NAMES)
