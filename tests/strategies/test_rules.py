"""When models have drifted or gradients changed: against loops, and between nodes."""

import asyncio
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from atoll.strategies import Quantity, parse_strategy
from atoll.strategies.rules import GradientChange, ModelDrift, Sketch
from atoll.trace import Event, Exchanged
from atoll.vectors import Vector, added, of_array
from atoll.world import Simulation
from atoll.world.base import World
from tests.strategies.nodes import Numbers, VectorReplica, run_strategy
from tests.world.networks import network

NET = network('[[node]]\ncount = 4\n[[link]]\namong = "*"\nlatency_ms = 5\nrate_mbps = 100')


SIMULATION = Simulation(NET)


class Still:
    """A replica whose gradient is what the test says."""

    def __init__(self, members: int) -> None:
        self.members = tuple(map(str, range(members)))
        self.gradient = torch.zeros(3)
        self.world = SIMULATION.worlds["0"]

    async def touch(self, work: Callable[[], Vector]) -> Vector:
        return work()

    def read(self, quantity: Quantity) -> Vector:
        assert quantity is Quantity.GRADIENT
        return self.gradient


@settings(deadline=None)
@given(
    norms=st.lists(st.floats(0.01, 100.0), min_size=2, max_size=40),
    members=st.integers(2, 50),
    delta=st.floats(0.01, 0.5),
    window=st.integers(2, 25),
)
def test_selsyncs_rule_against_loops(norms: list[float], members: int, delta: float, window: int) -> None:
    rule, replica = GradientChange(delta, window), Still(members)
    before: float | None = None
    for step, norm in enumerate(norms):
        replica.gradient = torch.tensor([0, norm**0.5, 0])
        asked = asyncio.run(rule(replica, 1))  # type: ignore[arg-type]
        total, weights, weight = 0.0, 0.0, 1.0
        for back in range(min(window, step + 1)):
            total += weight * norms[step - back]
            weights += weight
            weight *= 1 - members / 100
        smoothed = total / weights
        change = None if before is None else abs(smoothed - before) / before
        before = smoothed
        if change is None:
            assert asked
        elif abs(change - delta) > 1e-3:
            assert asked == (change >= delta)


def test_a_sketch_tells_lengths() -> None:
    draw = np.random.default_rng(1)
    sketch = Sketch(3000, 5)
    one, two = of_array(draw.normal(size=3000)), of_array(draw.normal(size=3000))
    assert Sketch.squared_length(sketch(one)) == pytest.approx(float(one @ one), rel=0.25)
    assert np.allclose(sketch(one) + sketch(two), sketch(one + two), rtol=1e-3, atol=1e-3)


@pytest.mark.parametrize("estimate", ["linear", "sketch", "naive"])
def test_the_variance_against_its_definition(estimate: str) -> None:
    """Sketch: about right.  Naive: an upper bound.  Linear: in between, and exact along the last direction."""
    draw = np.random.default_rng(2)
    drifts = [of_array(draw.normal(size=400)) for _ in range(5)]
    mean = added(drifts) / 5
    true = float(np.mean([float(u @ u) for u in drifts]) - float(mean @ mean))
    rule = ModelDrift(estimate, theta=1.0, share=0.2)  # type: ignore[arg-type]
    if estimate == "sketch":
        rule._sketch = Sketch(400, 3)
    rule._direction = mean / torch.linalg.vector_norm(mean)
    found = rule._variance([(float(u @ u), rule._summary(u)) for u in drifts])
    naive = float(np.mean([float(u @ u) for u in drifts]))
    if estimate == "naive":
        assert found == pytest.approx(naive, rel=1e-4)
    elif estimate == "linear":
        assert found == pytest.approx(true, rel=1e-3), "the direction was the mean's own"
    else:
        assert found == pytest.approx(true, rel=0.2)


def apart(world: World) -> tuple[Numbers, Numbers]:
    """All begin alike; one node drifts four times as fast as the others."""
    place = int(world.name)
    return np.zeros(8, dtype=np.float32), np.full(8, 1.0 if place else 4.0, dtype=np.float32)


@pytest.mark.parametrize("spec", ["fda:theta=100", "fda:naive,theta=100", "fda:sketch,theta=100", "selsync:delta=0.5"])
def test_one_nodes_need_is_everybodys(spec: str) -> None:
    seen: dict[str, list[int]] = {}

    def look(replica: VectorReplica) -> None:
        if np.allclose(replica.array, replica.array[0]) and replica.steps > 1:
            seen.setdefault(replica.world.name, []).append(replica.steps)

    replicas = run_strategy(NET, parse_strategy(spec), apart, steps=30, look=look)
    mean = np.mean([replica.array for replica in replicas.values()])
    assert mean == pytest.approx(30 * 7 / 4, rel=1e-4), "nobody's steps are lost"


class Watch:
    """Remembers the exchanges of one node."""

    def __init__(self) -> None:
        self.exchanged: list[float] = []

    def record(self, event: Event) -> None:
        if isinstance(event, Exchanged) and event.node == "0":
            self.exchanged.append(event.at)

    def flush(self) -> None:
        """Nothing waits."""


def test_thetas_calibration_finds_a_balance() -> None:
    """Exchanges that take long make drift be borne for longer."""
    counts = {}
    for rate in (100, 0.02):
        net = network(f'[[node]]\ncount = 3\n[[link]]\namong = "*"\nlatency_ms = 5\nrate_mbps = {rate}')
        watch = Watch()
        run_strategy(
            net,
            parse_strategy("fda:share=0.2"),
            lambda world: (np.zeros(500), apart(world)[1].repeat(500)[:500]),
            steps=120,
            trace=watch,
        )
        counts[rate] = len(watch.exchanged)
    assert 2 < counts[0.02] < counts[100] / 2


def test_a_node_that_is_called_learns_from_exchanges_too() -> None:
    """Θ follows what exchanges take, whoever called: quick ones never make it grow."""
    rule = ModelDrift("naive", theta=0, share=0.2)
    rule._theta = 4.0
    replica = VectorReplica(_Clock(), ("0", "1"), np.zeros(2), np.zeros(2))  # type: ignore[arg-type]
    rule._replica, rule._agreed = replica, torch.zeros(2)
    for turn in range(1, 6):
        replica.world.now = 10.0 * turn  # type: ignore[misc]
        rule.begins(replica.world.now)
        replica.world.now += 0.1  # type: ignore[misc]
        replica.write(Quantity.PARAMETERS, torch.full((2,), float(turn)))
        asyncio.run(rule.agreed())
    assert rule._theta < 4.0


class _Clock:
    name = "0"
    now = 0.0
    is_late = False

    async def offload(self, work: Callable[[], Any], **_: int) -> Any:
        return work()


def test_a_node_whose_model_is_not_finite_calls() -> None:
    rule = ModelDrift("naive", theta=1e9, share=0.2)
    replica = VectorReplica(_Clock(), ("0",), np.array([np.nan]), np.zeros(1))  # type: ignore[arg-type]
    rule._agreed = torch.zeros(1)
    assert asyncio.run(rule(replica, 1))
