"""Codecs that use another basis: cosines of chunks, or a low-rank matrix."""

import math
from dataclasses import dataclass
from functools import cache
from typing import ClassVar

import torch
from torch import Tensor

from atoll.codecs.base import Codec, as_bytes, from_bytes, register
from atoll.codecs.sparse import ChunkTopK

__all__ = ["Cosine", "LowRank", "matrix_shape"]

SIDE = 64


@cache
def _basis() -> Tensor:
    """The orthonormal discrete cosine transform of 64 values, as a matrix."""
    place = torch.arange(SIDE, dtype=torch.float64)
    rows = torch.cos(math.pi / SIDE * (place[None, :] + 0.5) * place[:, None]) * math.sqrt(2 / SIDE)
    rows[0] /= math.sqrt(2)
    return rows.float()


@dataclass(frozen=True, slots=True)
class Cosine(Codec):
    """The largest cosine coefficients of each 64 × 64 values (DeMo; Peng et al., 2024)."""

    sparse: ClassVar[bool] = True
    keep: int = 32

    @property
    def _inner(self) -> ChunkTopK:
        return ChunkTopK(keep=self.keep, chunk=SIDE * SIDE)

    def _padded(self, count: int) -> int:
        return -(-count // (SIDE * SIDE)) * SIDE * SIDE

    def size(self, count: int) -> int:
        return self._inner.size(self._padded(count))

    def encode(self, values: Tensor, key: int = 0) -> Tensor:
        basis = _basis().to(values.device)
        missing = self._padded(len(values)) - len(values)
        squares = torch.cat([values, values.new_zeros(missing)]).view(-1, SIDE, SIDE)
        return self._inner.encode((basis @ squares @ basis.T).flatten(), key)

    def decode(self, encoded: Tensor, count: int, key: int = 0) -> Tensor:
        basis = _basis().to(encoded.device)
        squares = self._inner.decode(encoded, self._padded(count), key).view(-1, SIDE, SIDE)
        return (basis.T @ squares @ basis).flatten()[:count]


def matrix_shape(count: int) -> tuple[int, int]:
    """The squarest matrix that holds `count` values."""
    rows = math.isqrt(max(count - 1, 0)) + 1
    return rows, -(-count // rows)


@dataclass(frozen=True, slots=True)
class LowRank(Codec):
    """The vector as a matrix, approximated by two low-rank factors from a power iteration (PowerSGD; Vogels et al.,
    2019).
    """

    rank: int = 2

    def _ranks(self, count: int) -> tuple[int, int, int]:
        rows, columns = matrix_shape(count)
        return rows, columns, min(self.rank, rows, columns)

    def size(self, count: int) -> int:
        rows, columns, rank = self._ranks(count)
        return 4 * rank * (rows + columns)

    def encode(self, values: Tensor, key: int = 0) -> Tensor:
        rows, columns, rank = self._ranks(len(values))
        matrix = torch.cat([values, values.new_zeros(rows * columns - len(values))]).view(rows, columns)
        guess = torch.randn(columns, rank, generator=torch.Generator().manual_seed(key)).to(values.device)
        for _ in range(2):
            left = torch.linalg.qr(matrix @ guess).Q
            guess = matrix.T @ left
        return as_bytes(left, guess)

    def decode(self, encoded: Tensor, count: int, key: int = 0) -> Tensor:  # noqa: ARG002
        rows, columns, rank = self._ranks(count)
        left = from_bytes(encoded, torch.float32, 0, rows * rank).view(rows, rank)
        right = from_bytes(encoded, torch.float32, 4 * rows * rank, columns * rank).view(columns, rank)
        return (left @ right.T).flatten()[:count]


register("dct", lambda keep: Cosine(int(keep)), "this many of the cosine coefficients of each 64 × 64", number=32)
register("lowrank", lambda rank: LowRank(int(rank)), "two factors of this rank of the vector as a matrix", number=2)
