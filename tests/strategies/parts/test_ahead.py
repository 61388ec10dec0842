"""What is put on top of a late mean: no step may be lost or counted twice."""

from collections.abc import Callable
from functools import partial

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from atoll.strategies.parts.ahead import Ahead, Blend, Consensus, FirstSteps, OwnSteps, SharedSteps, Steps
from atoll.vectors import Vector, added, of_array


def vector(*values: float) -> Vector:
    return of_array(np.array(values))


def test_own_steps_stay_where_they_are() -> None:
    ahead = OwnSteps()
    assert ahead(vector(5), vector(9), vector(2), Steps(10, 3)).tolist() == [2]
    assert ahead.contribution(vector(7)).tolist() == [7]


def test_only_the_first_steps_count_at_once() -> None:
    ahead = FirstSteps()
    assert ahead(vector(5), vector(9), vector(2), Steps(10, 3)).tolist() == [2]
    assert ahead(vector(5), vector(9), vector(20), Steps(20, 16)).tolist() == [5]
    assert ahead.contribution(vector(7)).tolist() == [22], "the other 15 go with the next"


def test_shared_steps_follow_the_last_movement() -> None:
    ahead = SharedSteps()
    assert ahead(vector(0), vector(1), vector(1), Steps(10, 2)).tolist() == [1], "nothing is known yet: own steps"
    assert ahead(vector(4), vector(9), vector(9), Steps(14, 2)).tolist() == [2], "4 in 4 steps: 2 in 2"
    assert ahead.contribution(vector(6)).tolist() == [13], "the 7 of its own that it did not use go with it"
    assert ahead.contribution(vector(6)).tolist() == [6], "once"


def test_it_looks_no_further_ahead_than_back() -> None:
    ahead = SharedSteps()
    ahead(vector(0), vector(0), vector(0), Steps(10, 0))
    assert ahead(vector(4), vector(50), vector(50), Steps(14, 40)).tolist() == pytest.approx([4 + 0.9 * 50])


def test_it_goes_no_further_than_own_steps_did() -> None:
    ahead = SharedSteps()
    ahead(vector(0), vector(0), vector(0), Steps(10, 0))
    assert ahead(vector(400), vector(3), vector(-3), Steps(14, 2)).tolist() == [3]


@given(
    rounds=st.lists(st.tuples(st.integers(1, 9), st.integers(0, 9), st.floats(-5, 5)), min_size=1, max_size=12),
    make=st.sampled_from(
        [OwnSteps, FirstSteps, SharedSteps, partial(SharedSteps, reach=0.0), partial(SharedSteps, reach=0.5)]
    ),
)
def test_every_own_step_is_contributed_exactly_once(
    rounds: list[tuple[int, int, float]], make: Callable[[], Ahead]
) -> None:
    """Alone in its rounds a node is its own mean: whatever was expected, it ends where its own steps have led it."""
    ahead = make()
    model, taken, step = 0.0, 0.0, 0
    for before, meanwhile, size in rounds:
        model, taken, step = model + size * before, taken + size * before, step + before
        mean = ahead.contribution(vector(model))
        assert mean[0] == pytest.approx(taken, rel=1e-4, abs=1e-3)
        drift = vector(size * meanwhile)
        taken += size * meanwhile
        model = float((mean + ahead(mean, mean, drift, Steps(step, meanwhile)))[0])
        step += meanwhile


def test_dasos_blend() -> None:
    """x ← (2S·x + P·mean)/(2S + P)."""
    own, mean = 7.0, 3.0
    x = mean + Blend()(vector(mean), vector(own), vector(0), Steps(10, 3, members=4))[0]
    assert x == pytest.approx((2 * 3 * own + 4 * mean) / (2 * 3 + 4))


def test_consensus_finds_what_all_agree_on() -> None:
    """Each node's own loss is (x − a)²/2: they must meet at the mean of all a, though every gradient pulls apart."""
    wants = [1.0, 5.0, 12.0]
    parts = [Consensus(pull=1.0) for _ in wants]
    models = [0.0, 0.0, 0.0]
    for _ in range(60):
        mean = added([part.contribution(vector(x)) for part, x in zip(parts, models, strict=True)]) / 3
        models = [
            float((mean + part(mean, vector(x), vector(0), Steps(1, 0)))[0])
            for part, x in zip(parts, models, strict=True)
        ]
        for _ in range(20):
            for place, (part, want) in enumerate(zip(parts, wants, strict=True)):
                pull = part.pull(vector(models[place]))
                assert pull is not None
                models[place] -= 0.2 * (models[place] - want + float(pull[0]))
    assert models == pytest.approx([6.0, 6.0, 6.0], abs=0.05)


def test_prices_of_members_that_left_are_in_no_mean() -> None:
    """Prices add up to nothing over all members; those of who is left would drag the others away."""
    part = Consensus(pull=1.0)
    for _ in range(10):
        part(vector(0.0), vector(3.0), vector(0), Steps(1, 0))
    assert part.contribution(vector(3.0))[0] == pytest.approx(33.0)
    part.restart()
    assert part.contribution(vector(3.0))[0] == 3.0
    pull = part.pull(vector(3.0))
    assert pull is not None
    assert pull[0] == pytest.approx(33.0), "alone it still follows what all agreed on"
    part(vector(2.0), vector(3.0), vector(0), Steps(1, 0))
    assert part.contribution(vector(3.0))[0] == pytest.approx(4.0), "a price of 1 among the new members"
