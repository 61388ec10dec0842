"""The numbers that travel behind the values of a round, summed like everything else and hence the same on every member:
the weights' sum, the work that is included, and how long each collective took.
"""

import numpy as np

from atoll.exchange import Vector
from atoll.strategy.replica import Replica, Work

__all__ = ["Choice", "Tail"]

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


class Choice:
    """Which collective to use.  `best` tries each once, then takes the one that took all members together the least
    time.

    Every twentieth round it tries the runner-up again, so that it notices when the network has changed.
    """

    def __init__(self, via: str, names: tuple[str, ...]) -> None:
        self._names = names
        self._fixed = None if via == "best" else via
        self._seconds: dict[str, float] = {}
        self._rounds = 0
        self._last = np.zeros(2 * len(self._names) if via == "best" else 0, dtype=np.float32)

    def now(self) -> str:
        if self._fixed:
            return self._fixed
        untried = [name for name in self._names if name not in self._seconds]
        if untried:
            return self._names[self._rounds % len(self._names)]
        ranked = sorted(self._names, key=lambda name: self._seconds[name])
        return ranked[min(1, len(ranked) - 1)] if self._rounds % 20 == 19 else ranked[0]

    def report(self) -> Vector:
        """What this member tells of its last round: seconds and a count, in the place of the collective used."""
        return self._last

    def learn(self, via: str, seconds: float, reports: Vector) -> None:
        if self._fixed:
            return
        self._rounds += 1
        count = len(self._names)
        for place, name in enumerate(self._names):
            if reports[count + place] > 0:
                mean = float(reports[place] / reports[count + place])
                known = self._seconds.get(name)
                self._seconds[name] = mean if known is None else 0.7 * known + 0.3 * mean
        self._last = np.zeros(2 * count, dtype=np.float32)
        place = self._names.index(via)
        self._last[place], self._last[count + place] = seconds, 1
