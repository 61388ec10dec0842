"""Whether a node's training makes progress."""

from collections import deque
from collections.abc import Callable
from statistics import median

__all__ = ["Progress"]

STUCK_S = 10.0
"""How long training may make no progress, unless its steps take long, before a node says `away`."""
STUCK_STEPS = 10.0
FIRST_STEP_S = 120.0
"""How long the first step may take."""
REMEMBERED = 16
"""How many steps the median is of."""


class Progress:
    """Whether a node's training makes progress, compared with its last steps.

    Args:
        progress: a counter that grows while training proceeds.
        now: the time.
    """

    def __init__(self, progress: Callable[[], int], now: float) -> None:
        self._progress = progress
        self._count = progress()
        self._moved_s = now
        self._gaps: deque[float] = deque(maxlen=REMEMBERED)
        self.waits = 0
        """How many exchanges training waits for; it does not count as stuck then."""

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
