"""Forming islands: against all ways there are, and never worse than simple rules."""

import itertools
import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from atoll.errors import TaskError
from atoll.islands.cut import Costs, Hop, Layer, Machine, Terms, best_cut
from atoll.islands.form import Averaging, Pairs, equal_cuts, form, ranges
from tests.islands.brute import best_of_all


def drawn(seed: int, nodes: int, layers: int, memory: float = math.inf) -> tuple[list[Layer], list[Machine], Pairs]:
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
        Pairs(
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


def test_equal_cuts_wait_for_the_slowest() -> None:
    layers = [Layer(str(place), 1.0, 0.0, 0.0, 0.0) for place in range(4)]
    machines = [Machine(1.0), Machine(3.0)]
    costs = Costs(layers, Terms(batch=1))
    equal = equal_cuts(costs, machines, [Hop()])
    best = best_cut(costs, machines, [Hop()])
    assert equal is not None
    assert best is not None
    assert (equal.slowest_s, best.slowest_s) == (6.0, 3.0)
    assert equal_cuts(costs, [Machine(1.0)] * 5, [Hop()] * 4) is None


@given(st.data())
def test_any_cuts_average_to_the_mean_of_the_whole(data: st.DataObject) -> None:
    sizes = data.draw(st.lists(st.integers(0, 5), min_size=1, max_size=8))
    count = data.draw(st.integers(2, 4))
    ends = np.concatenate([[0], np.cumsum(sizes)])
    draw = np.random.default_rng(data.draw(st.integers(0, 1000)))
    models = draw.standard_normal((count, ends[-1])).astype(np.float32)
    owners, names = [], itertools.count()
    for _ in range(count):
        inner = data.draw(st.sets(st.integers(1, len(sizes)), max_size=len(sizes)))
        owners.append([(stop, next(names)) for stop in sorted({*inner, len(sizes)})])
    averaged = models.copy()
    seen = 0
    for start, stop, who in ranges(owners):
        assert start == seen, "every layer is in one range"
        seen = stop
        for island, owner in zip(owners, who, strict=True):
            began = 0
            for end, name in island:
                if name == owner:
                    assert began <= start < stop <= end, "its owner has all of it"
                began = end
        part = slice(ends[start], ends[stop])
        averaged[:, part] = models[:, part].mean(0)
    assert seen == len(sizes)
    assert (averaged == models.mean(0)).all()
