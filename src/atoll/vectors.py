"""What is asked of whole vectors, quickly: they may have a billion values, and training waits meanwhile."""

import math
import zlib
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

__all__ = ["Matrix", "Vector", "all_finite", "digest", "length"]

Vector: TypeAlias = NDArray[np.float32]
Matrix: TypeAlias = NDArray[np.float64]


def all_finite(values: Vector) -> bool:
    """Whether all values are finite.  Their squares' sum says so, and needs no memory; where it is too large to tell,
    they are looked at one by one.
    """
    with np.errstate(over="ignore", invalid="ignore"):
        squares = float(np.dot(values, values))
    return math.isfinite(squares) or bool(np.isfinite(values).all())


def length(values: Vector) -> float:
    """Of a vector, whatever its values are; infinite if they are too large, or not finite."""
    with np.errstate(over="ignore", invalid="ignore"):
        squares = float(np.dot(values, values))
        if not math.isfinite(squares):
            squares = float(np.sum(np.square(values, dtype=np.float64)))
    return math.sqrt(squares) if math.isfinite(squares) else math.inf


def digest(values: Vector | None) -> str:
    """Differs where vectors do, but for one chance in four billion; empty for none."""
    return "" if values is None else f"{zlib.crc32(np.ascontiguousarray(values).data):08x}"
