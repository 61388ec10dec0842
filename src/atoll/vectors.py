"""Fast operations on whole vectors: they may have a billion values, and training waits meanwhile."""

import math
import zlib
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from atoll.memory import empty

__all__ = [
    "WHOLE",
    "Matrix",
    "Vector",
    "all_finite",
    "copied",
    "digest",
    "distance",
    "length",
    "minus",
    "plus",
    "times",
]

Vector: TypeAlias = NDArray[np.float32]
Matrix: TypeAlias = NDArray[np.float64]
WHOLE = slice(None)
"""The span of a whole vector."""
SLAB = 1 << 16
"""How many values fit in the cache during a computation."""


def all_finite(values: Vector) -> bool:
    """Returns whether all values are finite.  A finite sum of squares proves it, and needs no memory; otherwise each
    value is checked.
    """
    with np.errstate(over="ignore", invalid="ignore"):
        squares = float(np.dot(values, values))
    return math.isfinite(squares) or bool(np.isfinite(values).all())


def length(values: Vector) -> float:
    """Returns the length of a vector; infinite if its values are too large, or not finite."""
    with np.errstate(over="ignore", invalid="ignore"):
        squares = float(np.dot(values, values))
        if not math.isfinite(squares):
            squares = float(np.sum(np.square(values, dtype=np.float64)))
    return math.sqrt(squares) if math.isfinite(squares) else math.inf


def distance(values: Vector, factor: float, origin: Vector | None) -> float:
    """The length of values · factor − origin, computed slab by slab."""
    if factor == 1 and origin is None:
        return length(values)
    squares = 0.0
    room = np.empty(min(len(values), SLAB), dtype=np.float32)
    with np.errstate(over="ignore", invalid="ignore"):
        for start in range(0, len(values), SLAB):
            slab = values[start : start + SLAB]
            change = np.multiply(slab, np.float32(factor), out=room[: len(slab)])
            if origin is not None:
                change -= origin[start : start + SLAB]
            squares += length(change) ** 2
    return math.sqrt(squares)


def copied(values: Vector) -> Vector:
    """Returns a copy, in reusable memory."""
    found = empty(len(values))
    found[:] = values
    return found


def minus(one: Vector, other: Vector) -> Vector:
    """Returns one − other, in reusable memory."""
    found: Vector = np.subtract(one, other, out=empty(len(one)))
    return found


def plus(one: Vector, other: Vector) -> Vector:
    """Returns one + other, in reusable memory."""
    found: Vector = np.add(one, other, out=empty(len(one)))
    return found


def times(values: Vector, factor: float) -> Vector:
    """Returns values · factor, in reusable memory."""
    found: Vector = np.multiply(values, np.float32(factor), out=empty(len(values)))
    return found


def digest(values: Vector | None, before: str = "") -> str:
    """Returns a checksum (CRC-32) of a vector; empty for `None`.

    Args:
        values: a vector, or a part of it.
        before: the digest of the parts before.
    """
    if values is None:
        return before
    return f"{zlib.crc32(np.ascontiguousarray(values).data, int(before, 16) if before else 0):08x}"
