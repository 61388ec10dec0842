"""PowerSGD against the same in a few lines of float64."""

import numpy as np
import pytest
import torch

from atoll.codecs.transform import matrix_shape
from atoll.collectives import COLLECTIVES, Round
from atoll.collectives.lowrank import LowRankSum
from atoll.collectives.reduce import Reduced
from atoll.vectors import added, of_array
from atoll.world.sim.world import SimWorld
from tests.world.networks import network, run


@pytest.mark.parametrize("via", COLLECTIVES)
def test_two_rounds_against_numpy(via: str) -> None:
    draw = np.random.default_rng(4)
    count, size, rank = 3, 300, 2
    vectors = [[of_array(draw.normal(size=size)) for _ in range(count)] for _ in range(2)]
    net = network(f'[[node]]\ncount = {count}\n[[link]]\namong = "*"\nlatency_ms = 5')
    members = net.node_names

    async def program(world: SimWorld) -> list[Reduced]:
        reduction, own = LowRankSum(rank), members.index(world.name)
        tail = np.array([1.0], dtype=np.float32)
        return [
            await reduction(Round(world, f"round {turn}", members), vectors[turn][own], tail, via) for turn in range(2)
        ]

    results = run(net, program)
    rows, columns = matrix_shape(size)
    right = np.random.default_rng(0).normal(size=(columns, rank))
    for turn in range(2):
        padded = np.zeros(rows * columns)
        padded[:size] = added(vectors[turn])
        matrix = padded.reshape(rows, columns)
        basis, _ = np.linalg.qr(matrix @ right)
        right = matrix.T @ basis
        expected = (basis @ right.T).ravel()[:size]
        found = [results[name][turn] for name in members]
        for each in found:
            assert torch.equal(each.total, found[0].total)
            assert each.tail.tolist() == [3.0]
            np.testing.assert_allclose(each.total, expected, rtol=1e-2, atol=1e-3)
        unsent = added([each.unsent for each in found if each.unsent is not None])
        np.testing.assert_allclose(found[0].total + unsent, added(vectors[turn]), rtol=1e-3, atol=1e-3)
