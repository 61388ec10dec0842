"""Outer optimisers: each member applies the same outer step to a round's mean.

A part holds one node's state: the model that all members agreed on last (the anchor), and its state from the rounds
before.  It receives every mean in order, so members that took part in the same rounds agree to the last bit.
"""

from typing import Protocol

import numpy as np

from atoll.vectors import Vector, copied, minus

__all__ = ["HeavyBall", "Nesterov", "Outer", "TakeMean"]


class Outer(Protocol):
    """The outer step after a round."""

    @property
    def copies(self) -> int:
        """How many vectors it stores, beyond the anchor."""

    def start(self, initial: Vector) -> None:
        """Sets the model that all members start or restart from."""

    def __call__(self, mean: Vector) -> Vector:
        """The model that all members agree on next; it takes the memory of the mean."""


class TakeMean:
    """The mean itself: local SGD."""

    copies = 0

    def start(self, initial: Vector) -> None:
        """There is nothing to remember."""

    def __call__(self, mean: Vector) -> Vector:
        return mean


class Nesterov:
    """SGD with Nesterov momentum on the change of the mean (DiLoCo; Douillard et al., 2023).

    Δ = anchor − mean; b ← μb + Δ; anchor ← anchor − η(Δ + μb).
    """

    copies = 1

    def __init__(self, *, rate: float, momentum: float) -> None:
        self._rate = np.float32(rate)
        self._momentum = np.float32(momentum)
        self._anchor: Vector | None = None
        self._buffer: Vector | None = None
        """`None`: zeros, which take no memory."""

    def start(self, initial: Vector) -> None:
        self._anchor, self._buffer = initial, None

    def __call__(self, mean: Vector) -> Vector:
        assert self._anchor is not None, "started"
        change = minus(self._anchor, mean)
        if self._buffer is None:
            self._buffer = copied(change)
        else:
            self._buffer *= self._momentum
            self._buffer += change
        step = np.multiply(self._buffer, self._momentum, out=mean)
        step += change
        step *= self._rate
        self._anchor = np.subtract(self._anchor, step, out=step)
        return self._anchor


class HeavyBall:
    """SGD with momentum on the difference of a mean and the own anchor, also if members' anchors differ (NoLoCo).

    m ← μm + η(mean θ − φ); φ ← φ + m.  That is η·mean(θ − φ) + η(mean φ − φ): what the group has learned, and a step
    towards its mean.
    """

    copies = 1

    def __init__(self, *, rate: float, momentum: float) -> None:
        self._rate = np.float32(rate)
        self._momentum = np.float32(momentum)
        self._anchor: Vector | None = None
        self._move: Vector | None = None

    def start(self, initial: Vector) -> None:
        self._anchor, self._move = initial, None

    def __call__(self, mean: Vector) -> Vector:
        assert self._anchor is not None, "started"
        step = minus(mean, self._anchor)
        step *= self._rate
        if self._move is None:
            self._move = step
        else:
            self._move *= self._momentum
            self._move += step
        self._anchor = np.add(self._anchor, self._move, out=mean)
        return self._anchor
