"""Every value, in 32 or 16 bits."""

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from atoll.codecs.base import Codec, as_bytes, from_bytes, register
from atoll.vectors import copied

__all__ = ["Dense", "Half"]


@dataclass(frozen=True, slots=True)
class Dense(Codec):
    """Uncompressed float32."""

    summable: ClassVar[bool] = True

    def size(self, count: int) -> int:
        return 4 * count

    def encode(self, values: Tensor, key: int = 0) -> Tensor:  # noqa: ARG002 - the shape of a codec
        return as_bytes(copied(values))

    def decode(self, encoded: Tensor, count: int, key: int = 0) -> Tensor:  # noqa: ARG002
        return copied(from_bytes(encoded, torch.float32, 0, count))


@dataclass(frozen=True, slots=True)
class Half(Codec):
    """16 bits a value: bfloat16 (the range of 32 bits), or float16 (finer; too large values are clamped)."""

    brain: bool = True

    @property
    def _dtype(self) -> torch.dtype:
        return torch.bfloat16 if self.brain else torch.float16

    def size(self, count: int) -> int:
        return 2 * count

    def encode(self, values: Tensor, key: int = 0) -> Tensor:  # noqa: ARG002
        encoded = copied(values, self._dtype)
        if not self.brain:
            largest = torch.finfo(torch.float16).max
            encoded.clamp_(-largest, largest)
        return as_bytes(encoded)

    def decode(self, encoded: Tensor, count: int, key: int = 0) -> Tensor:  # noqa: ARG002
        return copied(from_bytes(encoded, self._dtype, 0, count), torch.float32)


register("dense", lambda _: Dense(), "every value in 32 bits")
register("bf16", lambda _: Half(brain=True), "every value in 16 bits, with the range of 32")
register("fp16", lambda _: Half(brain=False), "every value in 16 bits, finer and of less range")
