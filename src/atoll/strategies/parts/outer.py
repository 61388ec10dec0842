"""Outer optimisers: each member applies the same outer step to a round's mean.

A part holds one node's state from the rounds before.  It receives every mean in order, and the values that all members
agreed on last (the anchor), so members that took part in the same rounds agree to the last bit.
"""

from typing import Protocol

import torch

from atoll.vectors import Vector, copied, in_full, minus

__all__ = ["HeavyBall", "Nesterov", "Outer", "TakeMean"]


class Outer(Protocol):
    """The outer step after a round."""

    @property
    def copies(self) -> int:
        """How many vectors it stores."""

    def restart(self) -> None:
        """Called when members start, or restart, from a common model."""

    def __call__(self, anchor: Vector, mean: Vector) -> Vector:
        """The model that all members agree on next; it takes the memory of the mean."""


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
        change = minus(anchor, mean)
        self._buffer, now = _moved(self._buffer, self._momentum, change, anchor.dtype)
        step = torch.mul(now, self._momentum, out=mean)
        step += change
        step *= self._rate
        return torch.sub(in_full(anchor), step, out=step)


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
        step = minus(mean, anchor).mul_(self._rate)
        self._move, now = _moved(self._move, self._momentum, step, anchor.dtype)
        return torch.add(in_full(anchor), now, out=mean)


def _moved(kept: Vector | None, momentum: float, change: Vector, dtype: torch.dtype) -> tuple[Vector, Vector]:
    """μ·kept + change: as it is kept, and in full precision."""
    if kept is None:
        return copied(change, dtype), change
    if kept.dtype == change.dtype:
        kept *= momentum
        kept += change
        return kept, kept
    now = copied(kept, change.dtype).mul_(momentum).add_(change)
    return kept.copy_(now), now
