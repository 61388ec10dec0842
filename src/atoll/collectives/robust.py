"""Sums that one member cannot spoil: every member gets all vectors, and all compute the same robust mean.

Far-out vectors are left out first and named in the trace (`atoll.collectives.judge`).  Then, by rule:

* `median`: of each value;
* `trimmed`: the mean of each value without the largest and the smallest fifth of the members (at least one each);
* `clipped`: the mean, with vectors that are longer than the median member's scaled down to that.
"""

import contextlib
import math
from statistics import median
from typing import Literal

import numpy as np
import torch

from atoll.codecs.base import Codec
from atoll.codecs.dense import Dense
from atoll.collectives import Body, Round
from atoll.collectives.reduce import Reduced, Reduction
from atoll.vectors import Numbers, Vector, added, all_finite, common_length, divide, minus, of_bytes, sealed

__all__ = ["Robust", "RobustRule", "robust_mean"]

RobustRule = Literal["median", "trimmed", "clipped"]
TRIMMED = 0.2


class Robust(Reduction):
    """One robust mean of all members' vectors.

    Args:
        rule: the kind of mean.
        codec: encodes the vectors; default: uncompressed.
    """

    exact = False  # members send changes: the norms of whole models say nothing
    vias = ("gather",)

    def __init__(self, rule: RobustRule, codec: Codec | None = None) -> None:
        self._rule: RobustRule = rule
        self._codec = codec or Dense()

    async def __call__(self, meeting: Round, values: Vector, tail: Numbers, via: str) -> Reduced:  # noqa: ARG002
        offload, count = meeting.offload, len(values)
        own = await offload(lambda: sealed(self._codec.encode(values, meeting.key), tail), values=count)
        bodies = await meeting.gather(own)
        async with meeting.in_turn():
            return await offload(lambda: self._add_up(meeting, values, tail, bodies), values=count * meeting.size)

    def _add_up(self, meeting: Round, values: Vector, tail: Numbers, bodies: list[Body]) -> Reduced:
        read = [self._read(body, values, tail, meeting.key) for body in bodies]
        vectors = [vector for vector, _ in read]
        own_sent = vectors[meeting.rank]
        unsent = minus(values, own_sent) if all_finite(own_sent) else torch.zeros_like(values)
        tails, factors = meeting.judge.trailers(meeting.members, [each for _, each in read])
        scales = meeting.judge.scales(meeting.members, vectors, tails, factors, meeting.origin, alike=True)
        kept = [
            (vector * (scale * factor), each)
            for vector, each, scale, factor in zip(vectors, tails, scales, factors, strict=True)
            if scale > 0
        ]
        if not kept:
            return Reduced(torch.zeros_like(values), np.zeros_like(tail), unsent)
        summed: Numbers = np.sum([each for _, each in kept], axis=0, dtype=np.float32)
        means = [divide(vector, float(each[0])) for vector, each in kept if each[0] > 0]
        if not means:
            return Reduced(torch.zeros_like(values), summed, unsent)
        return Reduced(robust_mean(means, self._rule).mul_(float(summed[0])), summed, unsent)

    def _read(self, body: Body, values: Vector, tail: Numbers, key: int) -> tuple[Vector, Numbers]:
        """A member's vector and trailer; not finite if it is not as long as it should be, or cannot be decoded."""
        count = len(values)
        size = self._codec.size(count)
        if len(body) == size + tail.nbytes:
            encoded = of_bytes(body[:size], torch.uint8, values.device)
            with contextlib.suppress(RuntimeError, IndexError):
                return self._codec.decode(encoded, count, key), np.frombuffer(body[size:], dtype=np.float32)
        return torch.full_like(values, math.nan), np.zeros_like(tail)


def robust_mean(vectors: list[Vector], rule: RobustRule) -> Vector:
    """The robust mean of vectors.

    >>> robust_mean([torch.tensor([1.0]), torch.tensor([2.0]), torch.tensor([300.0])], "median")
    tensor([2.])
    """
    if rule == "clipped":
        norms = [common_length(each) for each in vectors]
        middle = median(norms)
        clipped = added([each * min(1.0, middle / max(norm, 1e-30)) for each, norm in zip(vectors, norms, strict=True)])
        return divide(clipped, len(vectors))
    ranked, count = torch.stack(vectors).sort(dim=0).values, len(vectors)
    cut = (count - 1) // 2
    if rule == "trimmed":
        cut = min(math.ceil(TRIMMED * count), cut)
    return divide(added(list(ranked[cut : count - cut])), count - 2 * cut)
