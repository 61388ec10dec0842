"""Error feedback: what was not sent is kept and goes with the next message.

One mechanism for all codecs and reductions: they say what of the values given to them they did not send.  Sent plus
kept is given, always.
"""

import numpy as np

from atoll.vectors import Vector, times

__all__ = ["Feedback"]


class Feedback:
    """One node's residual for one stream of messages.

    Args:
        decay: what the residual is multiplied with before each message (SparseLoCo: 0.95).
    """

    def __init__(self, *, decay: float = 1.0) -> None:
        self._decay = np.float32(decay)
        self.kept: Vector | None = None
        """What was given and not sent: part of checkpoints."""

    def given(self, values: Vector) -> Vector:
        """What is to be sent now: the values and what was kept, which is no longer kept."""
        kept, self.kept = self.kept, None
        if kept is None:
            return values
        found = times(kept, float(self._decay))
        found += values
        return found

    def keep(self, unsent: Vector | None) -> None:
        """A message is on its way, without this."""
        self.kept = unsent

    def flush(self) -> Vector | None:
        """All that is kept, once: a node that leaves sends it last."""
        kept, self.kept = self.kept, None
        return kept
