import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from atoll.strategy import parse_strategy
from atoll.strategy.correction import VarianceReduced
from atoll.world.base import World
from tests.strategy.nodes import Numbers, VectorReplica, run_strategy
from tests.world.networks import network

CALM = network('[[node]]\ncount = 3\nstep_s = 0.5\n[[link]]\namong = "*"\nlatency_ms = 20')


def apart(world: World) -> tuple[Numbers, Numbers]:
    """Shards that pull in different directions."""
    return np.zeros(3), np.eye(3)[int(world.name)]


def test_after_one_round_nodes_that_are_unlike_move_together() -> None:
    spread: dict[int, list[Numbers]] = {}

    def look(replica: VectorReplica) -> None:
        spread.setdefault(replica.steps, []).append(replica.values)

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
    ours = np.tile(start[0], (3, 1)).astype(np.float64)
    paper, delta = ours.copy(), np.zeros((3, 5))
    parts = [VarianceReduced() for _ in range(3)]
    for pull in pulls:
        for _ in range(every):
            for i, part in enumerate(parts):
                ours[i] -= pull[i]
                correction = part.step()
                ours[i] += 0 if correction is None else correction
            paper -= pull - delta
        for part in parts:
            part.begin()
        for i, part in enumerate(parts):
            part.learn((ours.mean(0) - ours[i]).astype(np.float32))
        delta = delta + (paper.mean(0) - paper) / every
        ours[:], paper[:] = ours.mean(0), paper.mean(0)
        assert ours == pytest.approx(paper, abs=1e-3)


def test_rounds_of_some_keep_what_stands_for_the_others() -> None:
    """Of four nodes that pull apart two are left alone: together they go on where all four went."""
    pulls = np.eye(4, dtype=np.float32)
    parts, models = [VarianceReduced() for _ in range(4)], np.zeros((4, 4), dtype=np.float32)

    def round_of(here: list[int], steps: int) -> None:
        for _ in range(steps):
            for i in here:
                correction = parts[i].step()
                models[i] += pulls[i] + (0 if correction is None else correction)
        mean = models[here].mean(0)
        for i in here:
            parts[i].begin()
            parts[i].learn(mean - models[i])
            models[i] = mean

    round_of([0, 1, 2, 3], 4)
    for steps in (4, 9, 2):
        round_of([0, 1], steps)
    assert models[0] == pytest.approx(np.full(4, (4 + 15) / 4), rel=1e-5)
