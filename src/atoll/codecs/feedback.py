"""Error feedback: the unsent part of the values is kept and added to the next message.

All codecs and reductions use this one mechanism: they return the part of the given values that they did not send.
Sent plus kept always equals given.
"""

import numpy as np

from atoll.vectors import Vector, times

__all__ = ["Feedback"]


class Feedback:
    """One node's residual for one stream of messages.

    Args:
        decay: a factor for the residual before each message (SparseLoCo: 0.95).
    """

    def __init__(self, *, decay: float = 1.0) -> None:
        self._decay = np.float32(decay)
        self.kept: Vector | None = None
        """The values that were given and not sent: part of checkpoints."""

    def given(self, values: Vector) -> Vector:
        """The values to send now: the given ones plus the residual, which is then cleared."""
        kept, self.kept = self.kept, None
        if kept is None:
            return values
        found = times(kept, float(self._decay))
        found += values
        return found

    def keep(self, unsent: Vector | None) -> None:
        """Keeps the part that the last message did not contain."""
        self.kept = unsent

    def flush(self) -> Vector | None:
        """Returns the residual and clears it: a node that leaves sends it last."""
        kept, self.kept = self.kept, None
        return kept
