"""The numbers that travel behind the values of a round, summed like everything else and hence the same on every member:
the weights' sum, the work that is included, and how long each collective took.
"""

import numpy as np

from atoll.exchange import Vector
from atoll.strategy.replica import Replica, Work

__all__ = ["Tail"]

_LOW = 1 << 20  # work is split in two numbers that a 32-bit float holds exactly


class Tail:
    """What all members' tails add up to."""

    def __init__(self, weight: float, work: Work, reports: Vector) -> None:
        self.weight = weight
        self.work = work
        self.reports = reports

    @staticmethod
    def own(replica: Replica, weight: float, report: Vector) -> Vector:
        """A member adds its weight, its own work in its own place, and what it saw."""
        count, rank = len(replica.members), replica.rank
        tail = np.zeros(1 + 2 * count + len(report), dtype=np.float32)
        tail[0] = weight
        high, low = divmod(int(replica.work[rank]), _LOW)
        tail[1 + rank], tail[1 + count + rank] = high, low
        tail[1 + 2 * count :] = report
        return tail

    @classmethod
    def read(cls, tail: Vector, count: int) -> "Tail":
        high, low = tail[1 : 1 + count].astype(np.int64), tail[1 + count : 1 + 2 * count].astype(np.int64)
        return cls(float(tail[0]), high * _LOW + low, tail[1 + 2 * count :])
