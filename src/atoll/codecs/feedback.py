"""Error feedback: the unsent part of the values is kept and added to the next message.

All codecs and reductions use this one mechanism: they return the part of the given values that they did not send.
Sent plus kept always equals given.
"""

from atoll.vectors import Vector, copied, on

__all__ = ["Feedback"]


class Feedback:
    """One node's residual for one stream of messages.

    Args:
        decay: a factor for the residual before each message (SparseLoCo: 0.95).
    """

    def __init__(self, *, decay: float = 1.0) -> None:
        self._decay = decay
        self.kept: Vector | None = None
        """The values that were given and not sent: part of checkpoints."""

    def given(self, values: Vector) -> Vector:
        """The values to send now: the given ones plus the residual, which stays until `keep` replaces it."""
        if self.kept is None:
            return values
        return copied(on(self.kept, values.device), values.dtype).mul_(self._decay).add_(values)

    def keep(self, unsent: Vector | None) -> None:
        """A message is sent, without this part; it may be kept in half precision."""
        self.kept = unsent
