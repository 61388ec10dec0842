"""Each merge against a few lines of obviously right arithmetic."""

import math
from functools import partial

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from atoll.strategies.parts.merge import (
    LEAST_PAST,
    PAST_BYTES,
    Arrival,
    ByAge,
    ByWork,
    Drift,
    Equal,
    Mean,
    Own,
    PushSum,
)
from atoll.world import Simulation
from tests.strategies.nodes import VectorReplica
from tests.world.networks import network

WORLD = Simulation(network("[[node]]\ncount = 2")).worlds["0"]
numbers = st.floats(-100, 100, width=32)


def replica(value: float) -> VectorReplica:
    return VectorReplica(WORLD, ("0", "1"), np.full(2, value), np.zeros(2))


def arrival(value: float, sent_s: float = 0.0, weight: float = 1.0) -> Arrival:
    values, nothing = torch.full((2,), value), torch.zeros(0)
    return Arrival("1", sent_s, values, np.array([0, 7]), nothing, weight)


@given(numbers, st.lists(numbers, min_size=1, max_size=5))
def test_equal(own: float, others: list[float]) -> None:
    made = replica(own)
    Equal()(made, [arrival(value) for value in others], Own(0, 2))
    assert made.array[0] == pytest.approx((own + sum(others)) / (1 + len(others)), abs=1e-3)
    assert made.work.tolist() == [0, 7]


@given(numbers, numbers, st.floats(0, 20))
def test_by_age(own: float, other: float, age_s: float) -> None:
    made = replica(own)
    ByAge(tau_s=4)(made, [arrival(other, sent_s=-age_s)], Own(0, 2))
    weight = math.exp(-age_s / 4)
    assert made.array[0] == pytest.approx((own + weight * other) / (1 + weight), abs=1e-3)


@given(numbers, numbers, numbers)
def test_drift(then: float, now: float, other: float) -> None:
    made, own = replica(now), Own(4, 2)
    own.remember(-5.0, lambda: torch.full((2,), then))
    own.remember(0.0, lambda: torch.full((2,), now))
    Drift()(made, [arrival(other, sent_s=-3.0)], own)
    assert made.array[0] == pytest.approx(now + (other - then) / 2, abs=1e-3)


@given(numbers, numbers, st.floats(0.1, 2), st.floats(0.1, 2))
def test_push_sum(own_value: float, other: float, own_mass: float, mass: float) -> None:
    made, own = replica(own_value), Own(0, 2)
    own.mass = own_mass
    PushSum()(made, [arrival(other, weight=mass)], own)
    assert own.mass == pytest.approx(own_mass + mass)
    assert made.array[0] == pytest.approx((own_mass * own_value + mass * other) / (own_mass + mass), abs=2e-3)


def test_weights_of_rounds() -> None:
    assert Mean()(7) == 1
    assert (ByWork()(7), ByWork()(0)) == (7, 1)


def test_history_is_bounded_and_answers_for_any_time() -> None:
    own = Own(2, 1)
    assert own.at(1.0) is None
    for time in range(5):
        own.remember(float(time), partial(torch.full, (1,), float(time)))
    assert [float(found[0]) for found in (own.at(0.0), own.at(3.5), own.at(9.0)) if found is not None] == [3, 3, 4]


def test_few_large_models_reach_as_far_back() -> None:
    own = Own(32, PAST_BYTES)
    for time in range(100):
        own.remember(float(time), partial(torch.full, (1,), float(time)))
    past = [then for then, _ in own._past]
    assert len(past) == LEAST_PAST
    assert 99 - past[0] >= 22
