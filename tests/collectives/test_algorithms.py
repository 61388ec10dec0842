import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from atoll.collectives import COLLECTIVES, Round
from atoll.collectives.algorithms import PIECE_VALUES
from atoll.network import Network
from atoll.vectors import Vector, of_array
from atoll.world import Physics
from atoll.world.sim.world import SimWorld
from tests.world.networks import network, run


def reduced(
    net: Network, via: str, vectors: list[Vector], *, seed: int = 0, physics: Physics | None = None
) -> tuple[list[Vector], float]:
    """What each node gets, and when the last one has it."""
    members = net.node_names

    async def program(world: SimWorld) -> tuple[Vector, float]:
        given = vectors[members.index(world.name)]
        total = await COLLECTIVES[via](Round(world, "test", members), given)
        return total, world.now

    results = run(net, program, seed=seed, **({"physics": physics} if physics else {}))
    return [results[name][0] for name in members], max(time for _, time in results.values())


def mesh(count: int, link: str) -> Network:
    return network(f'[[node]]\ncount = {count}\n[[link]]\namong = "*"\n{link}')


def star(count: int, latency_ms: float, rate_mbps: float) -> Network:
    return network(
        f'hubs = ["hub"]\n[[node]]\ncount = {count}\n'
        f'[[link]]\nbetween = ["[0-9]*", "hub"]\nlatency_ms = {latency_ms / 2}\nrate_mbps = {rate_mbps}'
    )


def some(count: int, size: int, seed: int) -> list[Vector]:
    draw = np.random.default_rng(seed)
    return [of_array(draw.normal(size=size)) for _ in range(count)]


@pytest.mark.parametrize("via", COLLECTIVES)
@given(
    count=st.integers(2, 17),
    size=st.integers(0, 200),
    seed=st.integers(0, 99),
    weather=st.sampled_from(["", "up_s = 0.2\ndown_s = 0.2"]),
)
@settings(max_examples=40, deadline=None)
def test_everyone_gets_the_sum_to_rounding_and_the_same_bytes(
    via: str, count: int, size: int, seed: int, weather: str
) -> None:
    """Any number of nodes, any size, also with outages in the middle."""
    vectors = some(count, size, seed)
    net = mesh(count, f"latency_ms = 20\nrate_mbps = 0.1\n{weather}")
    results, _ = reduced(net, via, vectors, seed=seed)
    expected = torch.stack(vectors).double().sum(0)
    for result in results:
        assert result.dtype == torch.float32
        assert torch.equal(result, results[0])
    np.testing.assert_allclose(results[0], expected, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize(
    ("via", "count"),
    [
        *((via, count) for via in COLLECTIVES for count in (2, 4, 8, 16)),
        *(
            (via, count) for via in ("star", "gather", "direct", "ring") for count in (3, 5, 9)
        ),  # the others' are for powers of two
    ],
)
def test_takes_what_its_formula_says(via: str, count: int) -> None:
    alpha, beta, size = 0.05, 8 / 100e6, 2_000_000
    payload = size * 4
    logarithm = math.log2(count)
    formulas = {
        "gather": alpha + (count - 1) * payload * beta,
        "star": 2 * alpha + 2 * (count - 1) * payload * beta,
        "direct": (2 if size / count <= PIECE_VALUES else 1) * alpha + 2 * (count - 1) / count * payload * beta,
        "ring": 2 * (count - 1) * alpha + 2 * (count - 1) / count * payload * beta,
        "tree": 2 * alpha * logarithm + 2 * logarithm * payload * beta,
        "hd": 2 * alpha * logarithm + 2 * (count - 1) / count * payload * beta,
    }
    vectors = [torch.ones(size)] * count
    results, taken = reduced(star(count, alpha * 1e3, 100), via, vectors)
    assert taken == pytest.approx(formulas[via], rel=0.01)
    assert results[0][0] == count


def test_does_not_touch_what_it_was_given() -> None:
    for via in COLLECTIVES:
        vectors = some(5, 40, 1)
        before = [vector.clone() for vector in vectors]
        reduced(mesh(5, "latency_ms = 1"), via, vectors)
        for vector, old in zip(vectors, before, strict=True):
            assert torch.equal(vector, old)
