import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from atoll.strategies import parse_strategy
from atoll.strategies.parts.correction import FADES, VarianceReduced
from atoll.vectors import of_array
from atoll.world.base import World
from tests.strategies.nodes import Numbers, VectorReplica, run_strategy
from tests.world.networks import network

CALM = network('[[node]]\ncount = 3\nstep_s = 0.5\n[[link]]\namong = "*"\nlatency_ms = 20')


def apart(world: World) -> tuple[Numbers, Numbers]:
    """Shards that pull in different directions."""
    return np.zeros(3), np.eye(3)[int(world.name)]


def test_after_one_round_nodes_that_are_unlike_move_together() -> None:
    spread: dict[int, list[Numbers]] = {}

    def look(replica: VectorReplica) -> None:
        spread.setdefault(replica.steps, []).append(replica.array)

    run_strategy(CALM, parse_strategy("vrl:every=4"), apart, steps=12, look=look)
    assert np.ptp(spread[3], axis=0).max() == 3  # the first round is not corrected
    for steps in (5, 6, 7, 9, 10, 11):
        assert np.ptp(spread[steps], axis=0).max() == pytest.approx(0, abs=1e-5)
        assert spread[steps][0] == pytest.approx(np.full(3, steps / 3), abs=1e-5)


@given(
    st.integers(1, 6),
    hnp.arrays(np.float32, (4, 3, 5), elements=st.floats(-8, 8, width=16)),
    hnp.arrays(np.float32, (3, 5), elements=st.floats(-8, 8, width=16)),
)
def test_it_is_vrl_sgd(every: int, pulls: Numbers, start: Numbers) -> None:
    """Against the paper's rule, written down: v = g − Δ, Δ ← Δ + (mean − x)/(kγ), with γ = 1 and gradients that differ
    from node to node and round to round.
    """
    paper, delta = np.tile(start[0], (3, 1)).astype(np.float64), np.zeros((3, 5))
    group = Nodes(paper.astype(np.float32))
    for pull in pulls:
        for _ in range(every):
            group.step(list(range(3)), -pull)
            paper -= pull - delta
        group.meet(list(range(3)))
        delta = delta + (paper.mean(0) - paper) / every
        paper[:] = paper.mean(0)
        assert group.models == pytest.approx(paper, abs=1e-3)


class Nodes:
    """Nodes that correct their steps, and meet."""

    def __init__(self, models: Numbers) -> None:
        self.models = models
        self.parts = [VarianceReduced() for _ in models]

    def step(self, here: list[int], moves: Numbers) -> None:
        for i in here:
            correction = self.parts[i].step()
            self.models[i] += moves[i] + (0 if correction is None else correction.numpy())

    def meet(self, here: list[int]) -> None:
        given = []
        for i in here:
            corrections = self.parts[i].begin()
            given.append(self.models[i] - (0 if corrections is None else corrections.numpy()))
        mean = np.mean(given, axis=0)
        for i, gave in zip(here, given, strict=True):
            self.parts[i].learn(of_array(mean - gave))
            self.models[i] = mean


def test_rounds_of_some_keep_what_stands_for_the_others() -> None:
    """Of four nodes that pull apart two are left alone: together they go on where all four went, less and less so, and
    when the others are back nothing is left of it.
    """
    group, pulls = Nodes(np.zeros((4, 4), dtype=np.float32)), np.eye(4, dtype=np.float32)
    everybody, left = [0, 1, 2, 3], [0, 1]
    for _ in range(4):
        group.step(everybody, pulls)
    group.meet(everybody)
    for i in left:
        group.parts[i].here(everybody=False)
    for steps in (4, 9, 2):
        for _ in range(steps):
            group.step(left, pulls)
        group.meet(left)
    stands = sum(FADES**step for step in range(1, 16))
    own, others = 1 + 15 / 2 - stands / 4, 1 + stands / 4
    assert group.models[0] == pytest.approx(np.array([own, own, others, others]), rel=1e-5)
    for i in everybody:
        group.parts[i].here(everybody=True)
    group.models[:] = 0
    for _ in range(4):
        group.step(everybody, pulls)
    group.meet(everybody)
    for _ in range(4):
        group.step(everybody, pulls)
    assert group.models == pytest.approx(np.full((4, 4), 2.0), rel=1e-5)


def test_an_error_does_not_stay() -> None:
    """Numbers of steps that change, and means that are not quite right, leave no drift behind."""
    group, pulls = Nodes(np.zeros((3, 3), dtype=np.float32)), np.eye(3, dtype=np.float32)
    draw = np.random.default_rng(0)
    for _ in range(200):
        for i in range(3):
            for _ in range(int(draw.integers(1, 6))):
                group.step([i], pulls)
        group.meet([0, 1, 2])
        group.models += draw.normal(0, 0.1, 3).astype(np.float32)
    before = group.models.mean()
    for _ in range(5):
        for _ in range(3):
            group.step([0, 1, 2], pulls)
        group.meet([0, 1, 2])
    assert group.models.mean() - before == pytest.approx(5, rel=0.05)
