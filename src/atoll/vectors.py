"""What is asked of whole vectors, quickly: they may have a billion values, and training waits meanwhile."""

import math
import zlib
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

__all__ = ["Matrix", "Vector", "all_finite", "digest", "joined", "length"]

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


def joined(parts: list[Vector]) -> Vector:
    """One vector of several.  If they lie one after the other in memory already, it is a view."""
    if len(parts) == 1:
        return parts[0]
    base = parts[0].base
    if isinstance(base, np.ndarray) and base.dtype == parts[0].dtype and base.ndim == 1:
        first, at = parts[0].ctypes.data, parts[0].ctypes.data
        for each in parts:
            if each.base is not base or each.ctypes.data != at or not each.flags.c_contiguous:
                return np.concatenate(parts)
            at += each.nbytes
        start = (first - base.ctypes.data) // base.itemsize
        view: Vector = base[start : start + sum(map(len, parts))]
        return view
    return np.concatenate(parts)


def digest(values: Vector | None, before: str = "") -> str:
    """Differs where vectors do, but for one chance in four billion; empty for none.

    Args:
        values: a vector, or a part of it.
        before: the digest of the parts before.
    """
    if values is None:
        return before
    return f"{zlib.crc32(np.ascontiguousarray(values).data, int(before, 16) if before else 0):08x}"
