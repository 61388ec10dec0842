"""The usual norms of members' vectors, and how often a member was refused for its norm."""

import math
from collections import deque
from statistics import median

__all__ = ["Lengths", "Refusals"]

FAR_OUT_PUSHED = 20.0
"""The same for single arrivals, compared with earlier ones: they differ by up to five times where shards differ."""
PATIENCE = 3
"""How often in a row a member is refused for its norm before it is accepted again, the first time."""


class Refusals:
    """How often members were refused for their norm, and whether it is time to accept one again.

    It accepts a member after the first few refusals in a row, then after twice as many, and so on.  An honest member's
    vectors get shorter once it is accepted; those of a dishonest member do not.
    """

    def __init__(self) -> None:
        self._times: dict[str, tuple[int, int]] = {}
        """By member: refusals in a row since it was last accepted, and refusals needed before it is accepted."""
        self._now: dict[str, bool] = {}
        """Members whose vector was too long in a block of this round, and whether they are accepted nevertheless."""

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
        """Whether a member whose vector is too long is accepted nevertheless; the answer holds for the whole round."""
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
        """Whether a member is refused again and again."""
        return any(times >= PATIENCE or patience > PATIENCE for times, patience in self._times.values())


class Lengths:
    """The usual norm of vectors that arrive one at a time.

    Args:
        far_out: limit for a vector's norm, in usual norms.
        remembered: how many earlier norms are kept to compare with; a quarter of them must be known.
    """

    def __init__(self, far_out: float = FAR_OUT_PUSHED, remembered: int = 16) -> None:
        self._far_out = far_out
        self._known: deque[float] = deque(maxlen=remembered)
        self._refused = Refusals()

    def clear(self) -> None:
        self._known.clear()
        self._refused.clear()

    @property
    def most(self) -> float:
        """The largest norm that is accepted without question."""
        lengths = [each for each in self._known if each > 0]
        return self._far_out * median(lengths) if 4 * len(lengths) >= (self._known.maxlen or 1) else math.inf

    def scale(self, name: str, found: float) -> float:
        """A factor for a member's vector: 0 where it is refused, and less than 1 where it is far too long but accepted,
        after a few refusals.
        """
        if not math.isfinite(found):
            return 0.0
        self._refused.begin()
        most = self.most
        if found <= most:
            self._refused.forgive(name)
            self._known.append(found)
            return 1.0
        if not self._refused.is_taken(name):
            return 0.0
        self._known.append(most)  # if all norms grow, the usual norm grows too
        return most / self._far_out / found
