"""The choice of the collective for rounds."""

import numpy as np

from atoll.vectors import Numbers

__all__ = ["Choice"]


class Choice:
    """Which collective to use.  `best` tries each once, then takes the one with the least total time of all members.
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

    def report(self) -> Numbers:
        """This member's report of its last round: seconds and a count, in the place of the collective used."""
        return self._last

    def learn(self, via: str, seconds: float, reports: Numbers) -> None:
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
