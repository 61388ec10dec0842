"""Numbers behind the values of a round."""

from typing import cast

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from atoll.strategy.replica import Replica
from atoll.strategy.tail import Tail


class Worker:
    def __init__(self, rank: int, count: int, work: int) -> None:
        self.rank = rank
        self.members = tuple(map(str, range(count)))
        self.work = np.zeros(count, dtype=np.int64)
        self.work[rank] = work


@given(st.lists(st.integers(0, 2**40), min_size=1, max_size=9))
def test_sums_of_tails_hold_everybodys_work_exactly(works: list[int]) -> None:
    report = np.array([0.5], dtype=np.float32)
    tails = [Tail.own(cast("Replica", Worker(rank, len(works), work)), 2.0, report) for rank, work in enumerate(works)]
    total = Tail.read(np.sum(tails, axis=0, dtype=np.float32), len(works))
    assert total.work.tolist() == works
    assert total.weight == 2.0 * len(works)
    assert total.reports.tolist() == [0.5 * len(works)]
