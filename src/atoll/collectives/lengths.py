"""How long members' vectors usually are, and how often one was refused for its length."""

import math
from collections import deque
from statistics import median

__all__ = ["Lengths", "Refusals"]

FAR_OUT_PUSHED = 20.0
"""The same of what comes one at a time, beside what came before: it differs by up to five times where shards differ."""
PATIENCE = 3
"""How often in a row a member is refused for its length before it is taken again, the first time."""


class Refusals:
    """How often members were refused for their length, and whether it is time to take one again.

    After the first few refusals in a row, then after twice as many, and so on: an honest member's vectors get shorter
    when it is taken, and those of one that lies do not.
    """

    def __init__(self) -> None:
        self._times: dict[str, tuple[int, int]] = {}
        """How often in a row since it was taken last, and how often before it is taken."""
        self._now: dict[str, bool] = {}
        """Members that were too long in a block of this round, and whether they are taken all the same."""

    def clear(self) -> None:
        self._times.clear()
        self._now.clear()

    def begin(self) -> None:
        """A round begins."""
        self._now.clear()

    def forgive(self, name: str) -> None:
        if name not in self._now:
            self._times.pop(name, None)

    def is_taken(self, name: str) -> bool:
        """A member's vector is too long once more: whether it is taken all the same, which holds for the round."""
        if name not in self._now:
            self._now[name] = self._is_taken(name)
        return self._now[name]

    def _is_taken(self, name: str) -> bool:
        times, patience = self._times.get(name, (0, PATIENCE))
        if times < patience:
            self._times[name] = times + 1, patience
            return False
        self._times[name] = 0, 2 * patience
        return True

    @property
    def is_alarming(self) -> bool:
        """Whether somebody is refused again and again."""
        return any(times >= PATIENCE or patience > PATIENCE for times, patience in self._times.values())


class Lengths:
    """How long what comes one at a time usually is.

    Args:
        far_out: how many times as long as that something may be.
        remembered: how many lengths are compared with; a quarter of them must be known.
    """

    def __init__(self, far_out: float = FAR_OUT_PUSHED, remembered: int = 16) -> None:
        self._far_out = far_out
        self._known: deque[float] = deque(maxlen=remembered)
        self._refused = Refusals()

    def clear(self) -> None:
        self._known.clear()
        self._refused.clear()

    def scale(self, name: str, found: float) -> float:
        """What a member's vector is to be multiplied with: 0 where it is refused, and less than 1 where it is taken
        though it is far too long, since it has been refused a few times.
        """
        if not math.isfinite(found):
            return 0.0
        self._refused.begin()
        lengths = [each for each in self._known if each > 0]
        middle = median(lengths) if 4 * len(lengths) >= (self._known.maxlen or 1) else math.inf
        most = self._far_out * middle
        if found <= most:
            self._refused.forgive(name)
            self._known.append(found)
            return 1.0
        if not self._refused.is_taken(name):
            return 0.0
        self._known.append(most)  # if all get longer, what is usual does too
        return middle / found
