"""Sums that one member cannot spoil: every member gets all vectors, and all compute the same robust mean.

Far-out vectors are left out first and named in the trace (`atoll.collectives.judge`).  Then, by rule:

* `median`: of each value;
* `trimmed`: the mean of each value without the largest and the smallest fifth of the members (at least one each);
* `clipped`: the mean, with vectors that are longer than the median member's scaled down to that.
"""

import contextlib
import math
from typing import Literal

import numpy as np
import torch

from atoll.codecs.base import Codec
from atoll.codecs.dense import Dense
from atoll.collectives import Body, Round
from atoll.collectives.reduce import Reduced, Reduction
from atoll.vectors import Vector, all_finite

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

    async def __call__(self, meeting: Round, values: Vector, tail: Vector, via: str) -> Reduced:  # noqa: ARG002
        offload = meeting.offload

        def encode() -> bytes:
            return self._codec.encode(torch.tensor(values), meeting.key).numpy().tobytes() + tail.tobytes()

        bodies = await meeting.gather(await offload(encode, values=len(values)))
        async with meeting.in_turn():
            return await offload(lambda: self._add_up(meeting, values, tail, bodies), values=len(values) * meeting.size)

    def _add_up(self, meeting: Round, values: Vector, tail: Vector, bodies: list[Body]) -> Reduced:
        size, count = self._codec.size(len(values)), len(values)
        read = [self._read(body, size, count, tail, meeting.key) for body in bodies]
        vectors = [vector for vector, _ in read]
        own_sent = vectors[meeting.rank]
        unsent = values - own_sent if all_finite(own_sent) else np.zeros_like(values)
        tails, factors = meeting.judge.trailers(meeting.members, [each for _, each in read])
        scales = meeting.judge.scales(meeting.members, vectors, tails, factors, meeting.origin, alike=True)
        kept = [
            (vector * np.float32(scale * factor), each)
            for vector, each, scale, factor in zip(vectors, tails, scales, factors, strict=True)
            if scale > 0
        ]
        if not kept:
            return Reduced(np.zeros_like(values), np.zeros_like(tail), unsent)
        summed: Vector = np.sum([each for _, each in kept], axis=0, dtype=np.float32)
        means = [vector / each[0] for vector, each in kept if each[0] > 0]
        if not means:
            return Reduced(np.zeros_like(values), summed, unsent)
        return Reduced(robust_mean(means, self._rule) * np.float32(summed[0]), summed, unsent)

    def _read(self, body: Body, size: int, count: int, tail: Vector, key: int) -> tuple[Vector, Vector]:
        """A member's vector and trailer; not finite if it is not as long as it should be, or cannot be decoded."""
        if len(body) == size + tail.nbytes:
            encoded = torch.frombuffer(bytearray(body[:size]), dtype=torch.uint8)
            with contextlib.suppress(RuntimeError, IndexError):
                return self._codec.decode(encoded, count, key).numpy(), np.frombuffer(body[size:], dtype=np.float32)
        return np.full(count, np.nan, dtype=np.float32), np.zeros_like(tail)


def robust_mean(vectors: list[Vector], rule: RobustRule) -> Vector:
    """The robust mean of vectors.

    >>> robust_mean([np.float32([1]), np.float32([2]), np.float32([300])], "median")
    array([2.], dtype=float32)
    """
    stacked = np.stack(vectors)
    if rule == "median":
        middle: Vector = np.median(stacked, axis=0).astype(np.float32)
        return middle
    if rule == "trimmed":
        cut = min(math.ceil(TRIMMED * len(vectors)), (len(vectors) - 1) // 2)
        kept = np.sort(stacked, axis=0)[cut : len(vectors) - cut]
        trimmed: Vector = kept.mean(axis=0, dtype=np.float32)
        return trimmed
    norms = np.linalg.norm(stacked, axis=1)
    scale = np.minimum(1.0, np.median(norms) / np.maximum(norms, 1e-30)).astype(np.float32)
    clipped: Vector = (stacked * scale[:, None]).mean(axis=0, dtype=np.float32)
    return clipped
