"""PowerSGD (Vogels et al., 2019): two small all-reduces give every member the same factors of the sum."""

import numpy as np
import torch

from atoll.codecs.transform import matrix_shape
from atoll.collectives import COLLECTIVES, Round
from atoll.collectives.reduce import Reduced, Reduction
from atoll.vectors import Vector

__all__ = ["LowRankSum"]


class LowRankSum(Reduction):
    """The sum of all members' vectors as a matrix of low rank.

    P = Σ MQ, made orthonormal; Q = Σ MᵀP; the sum is PQᵀ.  The next round starts from this Q.

    Args:
        rank: of the factors.
    """

    exact = False
    by_block = False  # one matrix

    @property
    def vias(self) -> tuple[str, ...]:
        return tuple(COLLECTIVES)

    def __init__(self, rank: int) -> None:
        self._rank = rank
        self._right: Vector | None = None

    def restart(self) -> None:
        self._right = None

    async def __call__(self, meeting: Round, values: Vector, tail: Vector, via: str) -> Reduced:
        rows, columns = matrix_shape(len(values))
        rank = min(self._rank, rows, columns)
        padded = np.zeros(rows * columns, dtype=np.float32)
        padded[: len(values)] = values
        matrix = padded.reshape(rows, columns)
        if self._right is None:
            draw = np.random.default_rng(0)
            self._right = draw.normal(size=(columns, rank)).astype(np.float32)
        left = await self._sum(meeting, "left", (matrix @ self._right).ravel(), via)
        basis: Vector = torch.linalg.qr(torch.tensor(left.reshape(rows, rank))).Q.numpy()
        own: Vector = matrix.T @ basis
        summed = await self._sum(meeting, "right", np.concatenate([own.ravel(), tail]), via)
        right = summed[: columns * rank].reshape(columns, rank)
        self._right = right
        total = (basis @ right.T).ravel()[: len(values)]
        sent = (basis @ own.T).ravel()[: len(values)]
        return Reduced(total, summed[columns * rank :], values - sent)

    @staticmethod
    async def _sum(meeting: Round, part: str, values: Vector, via: str) -> Vector:
        return await COLLECTIVES[via](meeting.named(f"{meeting.name}/{part}"), values)
