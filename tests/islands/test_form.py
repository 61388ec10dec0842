"""Forming islands: against all ways there are, and never worse than simple rules."""

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from atoll.errors import TaskError
from atoll.islands.cut import Layer, Machine, Terms
from atoll.islands.form import form
from atoll.islands.plan import Averaging, MachineLinks
from tests.islands.brute import best_of_all


def drawn(
    seed: int, nodes: int, layers: int, memory: float = math.inf
) -> tuple[list[Layer], list[Machine], MachineLinks]:
    draw = np.random.default_rng(seed)

    def number(low: float, high: float) -> float:
        return float(draw.uniform(low, high))

    chain = [
        Layer(str(place), number(1, 10), number(1, 100), number(1, 100), number(10, 1000)) for place in range(layers)
    ]
    machines = [Machine(number(1, 10), memory * number(0.5, 1.5), str(place)) for place in range(nodes)]
    return (
        chain,
        machines,
        MachineLinks(
            draw.uniform(0, 2, (nodes, nodes)),
            draw.uniform(5, 200, (nodes, nodes)),
            draw.choice([1.0, 1.0, 0.8], (nodes, nodes)),
        ),
    )


@settings(max_examples=25, deadline=None)
@given(st.integers(0, 10_000), st.integers(1, 4), st.integers(1, 6), st.sampled_from([math.inf, 3000.0, 8000.0]))
def test_nothing_is_better(seed: int, nodes: int, layers: int, memory: float) -> None:
    case, terms = drawn(seed, nodes, layers, memory), Terms(batch=2)
    best = best_of_all(*case, terms)
    if not best:
        with pytest.raises(TaskError, match="hold the model"):
            form(*case, terms)
        return
    plans = form(*case, terms)
    assert plans[0].samples_a_second >= 0.98 * best
    assert plans[0].samples_a_second <= best * (1 + 1e-9)
    rates = [plan.samples_a_second for plan in plans]
    assert rates == sorted(rates, reverse=True)
    for plan in plans:
        used = [place for island in plan.islands for place in island.order]
        assert sorted([*used, *plan.idle]) == list(range(nodes))
        for island in plan.islands:
            for place, stage in zip(island.order, island.cut.stages, strict=True):
                assert stage.memory.total <= case[1][place].memory_bytes * (1 + 1e-9)


def test_who_can_hold_it_all_is_an_island() -> None:
    layers, machines, pairs = drawn(1, 4, 6)
    best = form(layers, machines, pairs, Terms(batch=2))[0]
    assert best.name == "every node its own island"
    assert best.samples_a_second == pytest.approx(
        sum(each.flops_a_second for each in machines) / sum(3 * layer.flops for layer in layers)
    )


def test_many_are_searched_the_same_way_each_time() -> None:
    case = drawn(3, 24, 12, 9000.0)
    first, again = (form(*case, Terms(batch=2), seed=5)[0] for _ in range(2))
    assert first == again
    rules = [plan for plan in form(*case, Terms(batch=2), seed=5) if not plan.how.startswith("a search")]
    assert first.how.startswith("a search")
    assert first.samples_a_second > rules[0].samples_a_second


def test_waiting_for_averages_counts() -> None:
    layers, machines, pairs = drawn(1, 3, 6)
    alone = form(layers, machines, pairs, Terms(batch=2), Averaging(every=4))[0]
    waits = form(layers, machines, pairs, Terms(batch=2), Averaging(every=4, overlap=False))
    same = next(plan for plan in waits if plan.name == alone.name)
    expected = sum(2 / (island.cut.batch_s + same.averaging_s / 4) for island in same.islands)
    assert same.samples_a_second == pytest.approx(expected)
    assert same.averaging_s > 0
