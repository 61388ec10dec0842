"""Numbers behind the values of a round."""

from typing import cast

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from atoll.strategies.replica import Replica
from atoll.strategies.rounds.trailer import Trailer


class Worker:
    def __init__(self, rank: int, count: int, work: int) -> None:
        self.rank = rank
        self.members = tuple(map(str, range(count)))
        self.work = np.zeros(count, dtype=np.int64)
        self.work[rank] = work


@given(st.lists(st.integers(0, 2**40), min_size=1, max_size=9))
def test_sums_of_tails_hold_everybodys_work_exactly(works: list[int]) -> None:
    report = np.array([0.5], dtype=np.float32)
    tails = []
    for rank, work in enumerate(works):
        tail = Trailer.own(cast("Replica", Worker(rank, len(works), work)), 2.0, 2, report)
        Trailer.put(tail, len(works), np.array([rank, -rank], dtype=np.float32))
        tails.append(tail)
    total = Trailer.read(np.sum(tails, axis=0, dtype=np.float32), len(works), 2)
    assert total is not None
    middle = (len(works) - 1) / 2
    assert total.buffers.tolist() == [middle, -middle]
    assert total.work.tolist() == works
    assert total.weight == 2.0 * len(works)
    assert total.reports.tolist() == [0.5 * len(works)]
    assert total.alarms == 0


@pytest.mark.parametrize("wrong", [np.nan, np.inf, -1.0])
@pytest.mark.parametrize("place", [0, 1, 4, 5])
def test_a_sum_that_makes_no_sense_is_none(wrong: float, place: int) -> None:
    tail = Trailer.own(cast("Replica", Worker(0, 2, 5)), 1.0, 2, np.zeros(0, dtype=np.float32))
    assert Trailer.read(tail, 2, 2) is not None
    tail[place] = wrong
    assert Trailer.read(tail, 2, 2) is None
