"""The interface of codecs: a vector of floats in, bytes of a known size out, and back.

Codecs are frozen values without state.  They work on torch tensors wherever those live; nothing leaves the device.
`atoll.codecs.feedback` keeps the compression error.
"""

import abc
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from atoll.vectors import empty

__all__ = ["CODECS", "SLAB", "Codec", "as_bytes", "from_bytes", "register", "slabs"]

SLAB = 1 << 18
"""How many values a CPU processes at a time: they and their temporaries stay in its cache."""


@dataclass(frozen=True, slots=True)
class Codec(abc.ABC):
    """Encodes a vector in few bytes."""

    summable: ClassVar[bool] = False
    """Whether encoded forms of one key can be added, as vectors of float32, and decoded as the sum."""
    sparse: ClassVar[bool] = False
    """Whether most values come back as 0, so that a sum of many would have to be made sparse again."""

    @abc.abstractmethod
    def size(self, count: int) -> int:
        """Bytes that `count` values take, exactly."""

    @abc.abstractmethod
    def encode(self, values: Tensor, key: int = 0) -> Tensor:
        """Bytes (uint8) for a vector of float32.

        Args:
            values: one dimension, all finite.
            key: a random seed that all members of an exchange share, for codecs that draw random numbers.
        """

    @abc.abstractmethod
    def decode(self, encoded: Tensor, count: int, key: int = 0) -> Tensor:
        """The `count` values, as exact as the codec keeps them."""


def as_bytes(*parts: Tensor) -> Tensor:
    """Concatenates tensors as bytes; those of a single tensor are its own memory."""
    pieces = [part.flatten().contiguous().view(torch.uint8) for part in parts if part.numel()]
    if len(pieces) == 1:
        return pieces[0]
    together = empty(sum(map(len, pieces)), parts[0].device, torch.uint8)
    return torch.cat(pieces, out=together) if pieces else together


def from_bytes(encoded: Tensor, dtype: torch.dtype, start: int, count: int) -> Tensor:
    """Reads `count` numbers that begin at byte `start`: they may be the encoded bytes' own memory."""
    raw = encoded[start : start + dtype.itemsize * count]
    return (raw if raw.data_ptr() % dtype.itemsize == 0 else raw.clone()).view(dtype)


def slabs(values: Tensor, multiple: int) -> Iterator[tuple[int, Tensor]]:
    """Splits a vector in pieces to process one by one: where each begins, and the piece.  Each size but the last is a
    multiple of `multiple`.
    """
    size = max(1, SLAB // multiple) * multiple if values.device.type == "cpu" else max(1, len(values))
    for start in range(0, len(values), size):
        yield start, values[start : start + size]


CODECS: dict[str, tuple[Callable[[float], Codec], float | None, str]] = {}
"""By name: the function that makes the codec from its number, the default number (`None`: no number), a description."""


def register(name: str, make: Callable[[float], Codec], about: str, *, number: float | None = None) -> None:
    """Registers a codec under a name that users can write.

    Args:
        name: the name.
        make: makes the codec from the number after the slash.
        about: describes the values that it keeps.
        number: the default number; without it, the codec takes no number.
    """
    CODECS[name] = make, number, about
