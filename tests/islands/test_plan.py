"""Plans: what is equal, and that ranges of any cuts come to the whole."""

import itertools

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from atoll.islands.cut import Costs, Hop, Layer, Machine, Terms, best_cut
from atoll.islands.plan import equal_cuts, ranges


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
