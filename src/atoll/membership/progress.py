"""Whether a node's training moves."""

from collections import deque
from collections.abc import Callable
from statistics import median

__all__ = ["Progress"]

STUCK_S = 10.0
"""How long training may stand still, unless its steps take long, before a node says that it is away."""
STUCK_STEPS = 10.0
FIRST_STEP_S = 120.0
"""How long the first step may take."""
REMEMBERED = 16
"""By how many steps it is judged."""


class Progress:
    """Whether a node's training moves, by how often it has moved before.

    Args:
        progress: counts something that grows while training goes on.
        now: the time.
    """

    def __init__(self, progress: Callable[[], int], now: float) -> None:
        self._progress = progress
        self._count = progress()
        self._moved_s = now
        self._gaps: deque[float] = deque(maxlen=REMEMBERED)
        self.waits = 0
        """How many exchanges are waited for: training stands still on purpose then."""

    @property
    def has_begun(self) -> bool:
        return self._count > 0

    def is_stuck(self, now: float) -> bool:
        count = self._progress()
        if self.waits:
            self._moved_s = now
        elif count != self._count:
            self._gaps.append(now - self._moved_s)
            self._count, self._moved_s = count, now
        longest = max(STUCK_S, STUCK_STEPS * median(self._gaps)) if self._gaps else FIRST_STEP_S
        return now - self._moved_s > longest
