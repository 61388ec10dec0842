"""Predictions against formulas, against simulated outcomes, and orders against trying all."""

import itertools
import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from atoll.collectives import COLLECTIVES, Round
from atoll.collectives.cost import LinkMatrix, broadcast_s, collective_s, ring_order, tree_order
from atoll.world.sim.world import SimWorld
from tests.world.networks import network, run


def even(count: int, alpha: float, beta: float) -> LinkMatrix:
    return LinkMatrix(np.full((count, count), alpha), np.full(count, beta), np.full(count, beta))


@pytest.mark.parametrize("count", [2, 4, 8, 16])
def test_formulas(count: int) -> None:
    alpha, beta, size = 0.05, 1e-6, 1e6
    links, log = even(count, alpha, beta), math.log2(count)
    expected = {
        "gather": alpha + (count - 1) * size * beta,
        "star": 2 * alpha + 2 * (count - 1) * size * beta,
        "direct": 2 * alpha + 2 * (count - 1) / count * size * beta,
        "ring": 2 * (count - 1) * alpha + 2 * (count - 1) / count * size * beta,
        "tree": 2 * alpha * log + 2 * log * size * beta,
        "hd": 2 * alpha * log + 2 * (count - 1) / count * size * beta,
    }
    assert set(expected) == set(COLLECTIVES)
    for via, seconds in expected.items():
        assert collective_s(via, size, links) == pytest.approx(seconds)
    assert broadcast_s(size, links) == pytest.approx(log * (alpha + size * beta))


@pytest.mark.parametrize("via", COLLECTIVES)
@pytest.mark.parametrize("count", [3, 5, 8])
def test_what_the_simulator_does(via: str, count: int) -> None:
    """Uneven uplinks: the bottleneck is where it is said to be."""
    rates = [20.0 + 10 * place for place in range(count)]
    text = f'hubs = ["hub"]\n[[node]]\ncount = {count}\n'
    text += "".join(
        f'[[link]]\nbetween = ["{place}", "hub"]\nlatency_ms = 10\nrate_mbps = {rate}\n'
        for place, rate in enumerate(rates)
    )
    net = network(text)
    members = net.node_names
    values = torch.ones(1_000_000)

    async def program(world: SimWorld) -> float:
        await COLLECTIVES[via](Round(world, "test", members), values)
        return world.now

    taken = max(run(net, program).values())
    beta = np.array([8 / (rate * 1e6) for rate in rates])
    predicted = collective_s(via, 4e6, LinkMatrix(np.full((count, count), 0.02), beta, beta))
    assert predicted == pytest.approx(taken, rel=0.3 if via in {"ring", "hd", "tree"} else 0.05)


@settings(deadline=None, max_examples=20)
@given(count=st.integers(3, 6), seed=st.integers(0, 999))
def test_the_best_ring(count: int, seed: int) -> None:
    latency = np.random.default_rng(seed).random((count, count))
    links = LinkMatrix(latency, np.zeros(count), np.zeros(count))
    found = ring_order(links)
    assert sorted(found) == list(range(count))
    worst = min(
        max(latency[order[i], order[(i + 1) % count]] for i in range(count))
        for order in itertools.permutations(range(count))
    )
    assert max(latency[found[i], found[(i + 1) % count]] for i in range(count)) == worst


def test_a_ring_of_many_finds_its_neighbours() -> None:
    count = 12
    place = np.random.default_rng(3).permutation(count)
    latency = np.abs(place[:, None] - place[None, :]).astype(float)
    latency = np.minimum(latency, count - latency)  # on a circle, met in a random order
    links = LinkMatrix(latency, np.zeros(count), np.zeros(count))
    order = ring_order(links)
    assert max(latency[order[i], order[(i + 1) % count]] for i in range(count)) <= 2


@given(st.integers(2, 9), st.integers(0, 1000), st.sampled_from([100.0, 1e5]))
def test_the_best_tree_is_never_worse_than_the_members_own_order(count: int, seed: int, size: float) -> None:
    draw = np.random.default_rng(seed)
    latency = draw.uniform(0.001, 0.1, (count, count))
    latency = (latency + latency.T) / 2
    np.fill_diagonal(latency, 0)
    rates = draw.uniform(1e-8, 1e-5, count)
    links = LinkMatrix(latency, rates, rates)
    order = tree_order(links, size)
    assert sorted(order) == list(range(count))
    found = collective_s("tree", size, links.ordered(order))
    assert found <= collective_s("tree", size, links) + 1e-12
    if count <= 4:
        every = (collective_s("tree", size, links.ordered(each)) for each in itertools.permutations(range(count)))
        assert found == pytest.approx(min(every))


def test_who_is_near_to_all_is_the_root_of_the_tree() -> None:
    latency = np.full((8, 8), 0.2)
    latency[5, :] = latency[:, 5] = 0.01
    np.fill_diagonal(latency, 0)
    assert tree_order(LinkMatrix(latency, np.full(8, 1e-9), np.full(8, 1e-9)), 1000)[0] == 5
