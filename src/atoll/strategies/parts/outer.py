"""Outer optimisers: what all members make of a round's mean, each for itself and all alike.

A part holds one node's state: the model that all members agreed on last (the anchor), and what it remembers of the
rounds before.  It is told of every mean in order, so members that took part in the same rounds agree to the last bit.
"""

from typing import Protocol

import numpy as np

from atoll.memory import empty
from atoll.vectors import Vector, copied, minus, plus

__all__ = ["HeavyBall", "Nesterov", "Outer", "TakeMean"]


class Outer(Protocol):
    """What follows from a round."""

    @property
    def copies(self) -> int:
        """How many vectors it remembers, beyond what all members agreed on."""

    def start(self, initial: Vector) -> None:
        """The model that all members begin with, or begin anew from."""

    def __call__(self, mean: Vector) -> Vector:
        """The model that all members agree on next."""


class TakeMean:
    """The mean itself: local SGD."""

    copies = 0

    def start(self, initial: Vector) -> None:
        """There is nothing to remember."""

    def __call__(self, mean: Vector) -> Vector:
        return mean


class Nesterov:
    """SGD with Nesterov momentum on what the mean has changed (DiLoCo; Douillard et al., 2023).

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
        step = np.multiply(self._buffer, self._momentum, out=empty(len(mean)))
        step += change
        step *= self._rate
        self._anchor = np.subtract(self._anchor, step, out=step)
        return self._anchor


class HeavyBall:
    """SGD with momentum on the way from the own anchor to a mean, also where members' anchors differ (NoLoCo).

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
        self._anchor = plus(self._anchor, self._move)
        return self._anchor
