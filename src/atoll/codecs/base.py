"""What a codec is: a vector of floats in, bytes of a known size out, and back.

Codecs are frozen values without state.  They work on torch tensors wherever those live; nothing leaves the device.
What a codec loses is the business of `atoll.codecs.feedback`.
"""

import abc
from collections.abc import Callable
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

__all__ = ["CODECS", "SLAB", "Codec", "as_bytes", "from_bytes", "register", "slabs"]

SLAB = 1 << 18
"""Values that are worked on at a time on a CPU: they stay in its cache, and so do their temporaries."""


@dataclass(frozen=True, slots=True)
class Codec(abc.ABC):
    """A way to write a vector in few bytes."""

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
            key: what all members of an exchange have in common, for codecs that draw something.
        """

    @abc.abstractmethod
    def decode(self, encoded: Tensor, count: int, key: int = 0) -> Tensor:
        """The `count` values, as nearly as they were kept."""


def as_bytes(*parts: Tensor) -> Tensor:
    """Tensors one after the other, as bytes."""
    pieces = [part.flatten().contiguous().view(torch.uint8) for part in parts if part.numel()]
    return torch.cat(pieces) if pieces else parts[0].new_zeros(0, dtype=torch.uint8)


def from_bytes(encoded: Tensor, dtype: torch.dtype, start: int, count: int) -> Tensor:
    """`count` numbers that begin at a byte."""
    size = dtype.itemsize * count
    return encoded[start : start + size].clone().view(dtype)  # a copy: where they begin may not be aligned


def slabs(values: Tensor, multiple: int) -> list[Tensor]:
    """A vector in pieces to work on one after the other, each but the last a whole number of `multiple`."""
    if values.device.type != "cpu":
        return [values] if len(values) else []
    size = max(1, SLAB // multiple) * multiple
    return [values[start : start + size] for start in range(0, len(values), size)]


CODECS: dict[str, tuple[Callable[[float], Codec], float | None, str]] = {}
"""By name: how each is made of its number, that number by default (`None`: it has none), and what it keeps."""


def register(name: str, make: Callable[[float], Codec], about: str, *, number: float | None = None) -> None:
    """Makes a codec one that users can write.

    Args:
        name: what they write.
        make: makes it of the number behind the slash.
        about: what it keeps.
        number: that number by default; it has none if left out.
    """
    CODECS[name] = make, number, about
