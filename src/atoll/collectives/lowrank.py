"""PowerSGD (Vogels et al., 2019): two small all-reduces give every member the same factors of the sum."""

import numpy as np
import torch

from atoll.codecs.transform import matrix_shape
from atoll.collectives import Round
from atoll.collectives.reduce import SUMS, Reduced, Reduction, carried
from atoll.vectors import Numbers, Vector, minus

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
        return SUMS

    def __init__(self, rank: int) -> None:
        self._rank = rank
        self._right: Vector | None = None

    def restart(self) -> None:
        self._right = None

    async def __call__(self, meeting: Round, values: Vector, tail: Numbers, via: str) -> Reduced:
        count, offload = len(values), meeting.offload
        rows, columns = matrix_shape(count)
        rank = min(self._rank, rows, columns)
        if self._right is None:
            draw = np.random.default_rng(0).normal(size=(columns, rank))
            self._right = torch.from_numpy(draw).to(values)
        right = self._right

        def begin() -> tuple[Vector, Vector]:
            matrix = torch.cat([values, values.new_zeros(rows * columns - count)]).view(rows, columns)
            return matrix, (matrix @ right).flatten()

        matrix, first = await offload(begin, values=count)
        left, _ = await carried(meeting.named(f"{meeting.name}/left"), first, tail[:0], via)

        def project() -> tuple[Vector, Vector]:
            basis = torch.linalg.qr(left.view(rows, rank)).Q
            return basis, matrix.T @ basis

        basis, own = await offload(project, values=count)
        flat, tails = await carried(meeting.named(f"{meeting.name}/right"), own.flatten(), tail, via)
        self._right = then = flat.view(columns, rank)

        def finish() -> Reduced:
            total = (basis @ then.T).flatten()[:count]
            return Reduced(total, tails, minus(values, (basis @ own.T).flatten()[:count]))

        return await offload(finish, values=count)
