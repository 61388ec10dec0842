"""Outer optimisers: each member applies the same outer step to a round's mean.

A part holds one node's state from the rounds before.  It receives every mean in order, and the values that all members
agreed on last (the anchor), so members that took part in the same rounds agree to the last bit.
"""

from typing import Protocol

import torch

from atoll.vectors import Vector, copied, in_full, minus, on, stored

__all__ = ["HeavyBall", "Nesterov", "Outer", "TakeMean"]


class Outer(Protocol):
    """The outer step after a round."""

    @property
    def copies(self) -> int:
        """How many vectors it stores."""

    def restart(self) -> None:
        """Called when members start, or restart, from a common model."""

    def __call__(self, anchor: Vector, mean: Vector) -> Vector:
        """The model that all members agree on next; it takes the memory of the mean.

        Args:
            anchor: the model that they agreed on last, in the format and place in which it is kept.  So is what is
                stored here.
            mean: the round's.
        """


class TakeMean:
    """The mean itself: local SGD."""

    copies = 0

    def restart(self) -> None:
        """There is nothing to forget."""

    def __call__(self, anchor: Vector, mean: Vector) -> Vector:  # noqa: ARG002 - the shape of the part
        return mean


class Nesterov:
    """SGD with Nesterov momentum on the change of the mean (DiLoCo; Douillard et al., 2023).

    Δ = anchor − mean; b ← μb + Δ; anchor ← anchor − η(Δ + μb).
    """

    copies = 1

    def __init__(self, *, rate: float, momentum: float) -> None:
        self._rate = rate
        self._momentum = momentum
        self._buffer: Vector | None = None
        """`None`: zeros, which take no memory."""

    def restart(self) -> None:
        self._buffer = None

    def __call__(self, anchor: Vector, mean: Vector) -> Vector:
        here = on(anchor, mean.device)
        change = minus(here, mean)
        self._buffer, now = _moved(self._buffer, self._momentum, change, like=anchor)
        step = torch.mul(now, self._momentum, out=mean)
        step += change
        step *= self._rate
        return torch.sub(in_full(here), step, out=step)


class HeavyBall:
    """SGD with momentum on the difference of a mean and the own anchor, also if members' anchors differ (NoLoCo).

    m ← μm + η(mean θ − φ); φ ← φ + m.  That is η·mean(θ − φ) + η(mean φ − φ): what the group has learned, and a step
    towards its mean.
    """

    copies = 1

    def __init__(self, *, rate: float, momentum: float) -> None:
        self._rate = rate
        self._momentum = momentum
        self._move: Vector | None = None

    def restart(self) -> None:
        self._move = None

    def __call__(self, anchor: Vector, mean: Vector) -> Vector:
        here = on(anchor, mean.device)
        step = minus(mean, here).mul_(self._rate)
        self._move, now = _moved(self._move, self._momentum, step, like=anchor)
        return torch.add(in_full(here), now, out=mean)


def _moved(kept: Vector | None, momentum: float, change: Vector, *, like: Vector) -> tuple[Vector, Vector]:
    """μ·kept + change: as it is kept, in the format and place of `like`, and in full precision, where `change` is."""
    if kept is None:
        first = stored(change, like.dtype, like.device)
        return copied(first) if first is change else first, change
    if (kept.dtype, kept.device) == (change.dtype, change.device):
        kept *= momentum
        kept += change
        return kept, kept
    now = copied(on(kept, change.device), change.dtype).mul_(momentum).add_(change)
    return kept.copy_(now), now
