"""The numbers that travel behind the values of a round, summed like everything else and hence the same on every member:
the sum of weights, the included work, the number of alarms, buffers, and the time of each collective.
"""

import math

import numpy as np

from atoll.collectives import TrailerLayout
from atoll.strategies.replica import Replica, Work
from atoll.vectors import Numbers

__all__ = ["Trailer"]

_LOW = 1 << 20  # work is split in two numbers that a 32-bit float holds exactly


class Trailer:
    """The sum of all members' trailers."""

    def __init__(self, weight: float, work: Work, buffers: Numbers, reports: Numbers, *, alarms: float = 0.0) -> None:
        self.weight = weight
        self.work = work
        self.alarms = alarms
        """How many members have refused another again and again."""
        self.buffers = buffers
        """The weighted mean of all members'."""
        self.reports = reports

    @staticmethod
    def own(replica: Replica, weight: float, buffers: int, report: Numbers, *, alarm: bool = False) -> Numbers:
        """A member's trailer: its weight, its own work in its own place, an alarm, room for its buffers, and its
        report.
        """
        count, rank = len(replica.members), replica.rank
        start = _numbers(count)
        tail = np.zeros(start + buffers + len(report), dtype=np.float32)
        tail[0] = weight
        high, low = divmod(int(replica.work[rank]), _LOW)
        tail[1 + rank], tail[1 + count + rank] = high, low
        tail[start - 1] = alarm
        tail[start + buffers :] = report
        return tail

    @staticmethod
    def put(tail: Numbers, count: int, buffers: Numbers) -> None:
        """Puts a member's buffers into its trailer."""
        tail[_numbers(count) : _numbers(count) + len(buffers)] = buffers * tail[0]

    @staticmethod
    def silence(tail: Numbers, count: int, buffers: int) -> None:
        """Sets the weight and buffers of a member that has nothing to contribute to zero."""
        tail[0] = 0.0
        tail[_numbers(count) : _numbers(count) + buffers] = 0.0

    @staticmethod
    def numbers(tail: Numbers, count: int) -> Numbers:
        """A copy of the numbers before the buffers: every block but the first carries only these."""
        return tail[: _numbers(count)].copy()

    @staticmethod
    def trailer(replica: Replica, buffers: int) -> TrailerLayout:
        """The layout of trailers."""
        count, places = len(replica.members), {name: place for place, name in enumerate(replica.members)}
        return TrailerLayout(
            counts=_numbers(count),
            weighted=slice(_numbers(count), _numbers(count) + buffers),
            own=lambda name: (1 + places[name], 1 + count + places[name], _numbers(count) - 1),
            work=lambda tail, name: int(tail[1 + places[name]]) * _LOW + int(tail[1 + count + places[name]]),
        )

    @classmethod
    def read(cls, tail: Numbers, count: int, buffers: int) -> "Trailer | None":
        """Reads the sum; `None` if it is invalid, which is the same on all members."""
        numbers = tail[: _numbers(count)]
        if not np.isfinite(tail).all() or (numbers < 0).any() or (numbers[1:] > 1 << 33).any():
            return None
        weight = float(tail[0])
        high, low = numbers[1 : 1 + count].astype(np.int64), numbers[1 + count : -1].astype(np.int64)
        summed = tail[_numbers(count) : _numbers(count) + buffers]
        mean = summed / np.float32(weight) if weight > 0 else np.full_like(summed, math.nan)
        reports = tail[_numbers(count) + buffers :]
        return cls(weight, high * _LOW + low, mean, reports, alarms=float(numbers[-1]))


def _numbers(count: int) -> int:
    """How many numbers come before the buffers, for `count` members: the weight, two for each one's work, an alarm."""
    return 2 + 2 * count
