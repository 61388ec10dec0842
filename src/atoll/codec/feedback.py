"""Error feedback: what a codec did not send is kept and goes with the next message.

One wrapper for all codecs.  Sent plus kept is given, always.
"""

from torch import Tensor

from atoll.codec.base import Codec

__all__ = ["Feedback"]


class Feedback:
    """One node's residual for one stream of messages.

    Args:
        codec: what messages are encoded with.
        decay: what the residual is multiplied with before each message (SparseLoCo: 0.95).
    """

    def __init__(self, codec: Codec, *, decay: float = 1.0) -> None:
        self.codec = codec
        self._decay = decay
        self._kept: Tensor | None = None

    @property
    def kept(self) -> Tensor | None:
        """What was given and not sent: part of checkpoints, and what a node that leaves sends last."""
        return self._kept

    @kept.setter
    def kept(self, values: Tensor | None) -> None:
        self._kept = values

    def given(self, values: Tensor) -> Tensor:
        """What is to be sent now: the values and what was kept."""
        if self._kept is None:
            return values
        return values + self._kept * self._decay

    def encode(self, values: Tensor, key: int = 0) -> Tensor:
        """Encodes values and what was kept, and keeps what the codec leaves out."""
        given = self.given(values)
        encoded = self.codec.encode(given, key)
        self.settle(given, self.codec.decode(encoded, len(given), key))
        return encoded

    def settle(self, given: Tensor, sent: Tensor) -> None:
        """Keeps the difference."""
        self._kept = given - sent

    def flush(self) -> Tensor | None:
        """All that is kept, once: it is somebody else's now."""
        kept, self._kept = self._kept, None
        return kept

    def give_back(self, values: Tensor) -> None:
        """A message was not sent after all: all of it is kept."""
        self._kept = values if self._kept is None else self._kept + values
