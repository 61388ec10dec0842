"""Fast operations on vectors: a model's values as tensors of one dimension, on the device where the model lives.

Vectors may have a billion values, and training runs meanwhile: nothing here takes memory that it does not return, and
on a CPU that memory is used again (`atoll.memory`).  Results that all members of a round must share, as means and
digests, are the same bytes on every device.
"""

import ctypes
import math
import struct
import zlib
from collections.abc import Sequence
from functools import cache
from typing import Any, NamedTuple, TypeAlias

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from atoll import memory

__all__ = [
    "CPU",
    "WHOLE",
    "Change",
    "Matrix",
    "Numbers",
    "Vector",
    "added",
    "all_finite",
    "as_array",
    "bytes_of",
    "common_length",
    "copied",
    "digest",
    "divide",
    "empty",
    "in_full",
    "length",
    "lengths",
    "minus",
    "of_array",
    "of_bytes",
    "on",
    "sealed",
    "stored",
    "times",
    "used_here",
    "zeros",
]

Vector: TypeAlias = Tensor
"""One dimension, float32, on the device of the model."""
Numbers: TypeAlias = NDArray[np.float32]
"""A few numbers that travel with a vector, on the host."""
Matrix: TypeAlias = NDArray[np.float64]
WHOLE = slice(None)
"""The span of a whole vector."""
CPU = torch.device("cpu")
SLAB = 1 << 16
"""How many values fit in the cache during a computation."""


def empty(count: int, device: torch.device = CPU, dtype: torch.dtype = torch.float32) -> Vector:
    """Returns an uninitialised vector, in reusable memory."""
    size = count * dtype.itemsize
    if device.type != "cpu" or size < memory.LEAST_BYTES:
        return torch.empty(count, dtype=dtype, device=device)
    return torch.from_numpy(memory.empty_bytes(size)).view(dtype)


def zeros(count: int, device: torch.device = CPU) -> Vector:
    """Returns a vector of zeros, in reusable memory."""
    return empty(count, device).zero_()


def copied(values: Vector, dtype: torch.dtype | None = None) -> Vector:
    """Returns a copy, in reusable memory."""
    return empty(len(values), values.device, dtype or values.dtype).copy_(values)


def added(vectors: Sequence[Vector]) -> Vector:
    """Returns the sum, added in the order given, in reusable memory."""
    total = copied(vectors[0])
    for each in vectors[1:]:
        total += each
    return total


def minus(one: Vector, other: Vector) -> Vector:
    """Returns one − other in float32, in reusable memory."""
    return torch.sub(in_full(one), in_full(other), out=empty(len(one), one.device))


def on(values: Vector, device: torch.device) -> Vector:
    """The vector on a device: itself, if it is there."""
    return values if values.device == device else values.to(device, non_blocking=True)


def stored(values: Vector, dtype: torch.dtype, device: torch.device) -> Vector:
    """The vector in another format, on another device: itself, if it is so.  What comes from a GPU to the host is in
    pinned memory, and is there when this returns.
    """
    if values.device == device:
        return values if values.dtype == dtype else copied(values, dtype)
    if device.type != "cpu":
        return on(values, device).to(dtype)
    room = torch.empty(len(values), dtype=dtype, pin_memory=True)
    return room.copy_(values.to(dtype))


def used_here(values: Vector) -> Vector:
    """The vector, which this thread's stream of a GPU uses: its memory, of whichever stream, is not used again before
    that is done.
    """
    if values.is_cuda:
        values.record_stream(torch.cuda.current_stream(values.device))
    return values


def in_full(values: Vector) -> Vector:
    """Returns the values in float32, to compute with others.  A CPU would make such a copy by itself, in memory that
    it does not use again; a GPU needs none.
    """
    return values if values.is_cuda or values.dtype == torch.float32 else copied(values, torch.float32)


def times(values: Vector, factor: float) -> Vector:
    """Returns values · factor, in reusable memory."""
    return torch.mul(values, factor, out=empty(len(values), values.device))


def divide(values: Vector, by: float) -> Vector:
    """Divides in place.  A GPU would multiply by the inverse of a number, and get other bytes than a CPU."""
    return values.div_(torch.full((1,), by, dtype=values.dtype, device=values.device) if values.is_cuda else by)


def all_finite(values: Vector) -> bool:
    """Returns whether all values are finite.  A finite sum of squares proves it, and needs no memory; otherwise each
    value is checked.
    """
    return math.isfinite(_squares(values)) or bool(torch.isfinite(values).all())


def length(values: Vector) -> float:
    """Returns the length of a vector; infinite if its values are too large, or not finite."""
    squares = _squares(values)
    if not math.isfinite(squares):
        squares = float(torch.linalg.vector_norm(values, dtype=torch.float64)) ** 2
    return math.sqrt(squares) if math.isfinite(squares) else math.inf


def common_length(values: Vector) -> float:
    """Returns the length of a vector, the same number on every device and with any number of threads: squares are added
    in one order.  It takes longer than `length`, and is for numbers that all members must compute alike.
    """
    squares = values.double().square_()
    while (count := len(squares)) > 1:
        half = (count + 1) // 2
        squares[: count - half] += squares[half:]
        squares = squares[:half]
    found = float(squares.sum())
    return math.sqrt(found) if math.isfinite(found) else math.inf


def _squares(values: Vector) -> float:
    """The sum of squares; values in half precision are read slab by slab, so that no whole copy of them is made."""
    if values.dtype == torch.float32:
        return torch.dot(values, values).item()
    parts = [values] if values.is_cuda else torch.split(values, SLAB)
    return sum(torch.dot(part, part).item() for part in (part.float() for part in parts))


class Change(NamedTuple):
    """values · factor − origin."""

    values: Vector
    factor: float = 1.0
    origin: Vector | None = None

    def __call__(self, span: slice = WHOLE) -> Vector:
        change = self.values[span]
        if self.factor != 1:
            change = change * self.factor
        return change if self.origin is None else change - self.origin[span]


def lengths(changes: Sequence[Change]) -> list[float]:
    """The lengths of some changes, which may be infinite or NaN: on a CPU slab by slab; for a GPU we wait only once."""
    if not any(change.values.is_cuda for change in changes):
        return [_length_by_slabs(change) for change in changes]
    squares = torch.stack([_square(change().float()) for change in changes]).tolist()
    return [
        math.sqrt(square) if math.isfinite(square) else length(change())
        for square, change in zip(squares, changes, strict=True)
    ]


def _square(values: Vector) -> Tensor:
    return torch.dot(values, values)


def _length_by_slabs(change: Change) -> float:
    if change.factor == 1 and change.origin is None:
        return length(change.values)
    starts = range(0, len(change.values), SLAB)
    return math.sqrt(sum(length(change(slice(start, start + SLAB))) ** 2 for start in starts))


def digest(values: Vector | None, before: str = "") -> str:
    """Returns a checksum of a vector, the same on every device; empty for `None`.

    The bits of the values are multiplied by odd numbers that differ by place, and added as whole numbers: in any order
    the sum is the same, and a change of one value always changes it.

    Args:
        values: a vector, or a part of it.
        before: the digest of the parts before.
    """
    if values is None:
        return before
    bits = values.contiguous().view(torch.int32 if values.dtype == torch.float32 else torch.int16)
    odd, whole = _odd(values.device), len(bits) // SLAB * SLAB
    rows = bits[:whole].view(-1, SLAB)
    rest = bits[whole:]
    last = (rest * odd[: len(rest)]).sum(0, keepdim=True, dtype=torch.int64)
    if values.is_cuda:
        sums = torch.cat([(rows * odd).sum(1, dtype=torch.int64), last]).tolist()
    else:
        sums = [int((row * odd).sum(dtype=torch.int64)) for row in rows] + last.tolist()
    found = zlib.crc32(struct.pack(f"<{len(sums) + 1}q", *sums, len(bits)), int(before, 16) if before else 0)
    return f"{found:08x}"


@cache
def _odd(device: torch.device) -> Tensor:
    return (torch.arange(SLAB, dtype=torch.int32) * -1640531527 | 1).to(device)


def bytes_of(values: Tensor) -> memoryview:
    """The bytes of a tensor, on the host; on a CPU they are the tensor's own memory, and change with it."""
    raw = _raw(values)
    found: memoryview = (_pinned(len(raw)).copy_(raw) if raw.is_cuda else raw).numpy().data
    return found.toreadonly()


def sealed(values: Tensor, *more: Numbers) -> memoryview:
    """The bytes of a tensor and of numbers behind it, in memory of their own: nothing changes them any more."""
    raw = _raw(values)
    size = len(raw) + sum(each.nbytes for each in more)
    room = _pinned(size) if raw.is_cuda else empty(size, dtype=torch.uint8)
    room[: len(raw)].copy_(raw)
    found, place = room.numpy(), len(raw)
    for each in more:
        found[place : place + each.nbytes] = each.view(np.uint8)
        place += each.nbytes
    return found.data.toreadonly()


def _raw(values: Tensor) -> Tensor:
    return values.contiguous().view(torch.uint8) if len(values) else values.new_empty(0, dtype=torch.uint8)


def _pinned(size: int) -> Tensor:
    """Host memory that a GPU reads and writes several times as fast; torch keeps it for reuse."""
    return torch.empty(size, dtype=torch.uint8, pin_memory=True)


def of_bytes(
    data: bytes | memoryview, dtype: torch.dtype = torch.float32, device: torch.device = CPU, count: int = -1
) -> Tensor:
    """Bytes that have arrived, as a tensor.  On a CPU nothing is copied: the result must not be changed."""
    raw = np.frombuffer(data, dtype=np.uint8)
    raw = raw if count < 0 else raw[: count * dtype.itemsize]
    place = raw.__array_interface__["data"][0]
    if not raw.size:
        return torch.empty(0, dtype=dtype, device=device)
    if raw.size % dtype.itemsize:
        raise ValueError(f"{raw.size} bytes are no whole number of {dtype}")
    if device.type != "cpu":
        staged = _pinned(raw.size)
        staged.numpy()[:] = raw
        return staged.to(device, non_blocking=True).view(dtype)
    if place % dtype.itemsize:
        raw = raw.copy()
    if not raw.flags.writeable:  # torch warns of memory that it could write to
        held: Any = (ctypes.c_char * raw.size).from_address(place)
        held.owner = raw
        return torch.frombuffer(held, dtype=dtype)
    return torch.from_numpy(raw).view(dtype)


def as_array(values: Vector) -> NDArray[Any]:
    """A vector as an array on the host, for checkpoints; from a CPU it is the same memory."""
    found: NDArray[Any] = values.to(CPU, torch.float32).numpy()
    return found


def of_array(array: NDArray[Any], device: torch.device = CPU, dtype: torch.dtype = torch.float32) -> Vector:
    """A copy of an array, as a vector."""
    return empty(array.size, device, dtype).copy_(torch.from_numpy(np.ascontiguousarray(array, dtype=np.float32)))
