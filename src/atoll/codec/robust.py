"""Sums that one member cannot spoil: everybody gets everybody's vector, and all take the same robust mean.

Far-out vectors are left out first and named in the trace: what is not finite, and what is more than ten times as long
as the median member's.  Then, by rule:

* `median`: of each value;
* `trimmed`: the mean of each value without the largest and the smallest fifth of the members (at least one each);
* `clipped`: the mean, with vectors that are longer than the median member's scaled down to that.
"""

import math
from typing import Literal

import numpy as np
import torch

from atoll.codec.base import Codec
from atoll.codec.dense import Dense
from atoll.codec.reduce import Reduced, Reduction
from atoll.exchange import Body, Round, Vector
from atoll.trace import ContributionRefused

__all__ = ["Robust", "Rule", "robust_mean"]

Rule = Literal["median", "trimmed", "clipped"]
FAR_OUT = 10.0
TRIMMED = 0.2
LARGEST = 1e7
"""No weight, count or time in a tail is larger, or negative."""


class Robust(Reduction):
    """One robust mean of all members' vectors.

    Args:
        rule: which.
        codec: how vectors are written; whole unless given.
    """

    exact = False  # members tell changes: the lengths of whole models say nothing
    vias = ("gather",)

    def __init__(self, rule: Rule, codec: Codec | None = None) -> None:
        self._rule: Rule = rule
        self._codec = codec or Dense()

    async def __call__(self, meeting: Round, values: Vector, tail: Vector, via: str) -> Reduced:  # noqa: ARG002
        size, count = self._codec.size(len(values)), len(values)
        own = self._codec.encode(torch.tensor(values), meeting.key).numpy().tobytes()
        bodies = await meeting.gather(own + tail.tobytes())
        vectors = [self._read(body, size, count, len(tail), meeting.key) for body in bodies]
        tails = [np.frombuffer(body[size:], dtype=np.float32) for body in bodies]
        kept, refused = _sound(vectors)
        world = meeting.world
        for rank, why in refused.items():
            name, said = meeting.name, f"{meeting.members[rank]}: {why}"
            world.record(ContributionRefused(at=world.now, node=world.name, name=name, why=said))
        unsent = values - vectors[meeting.rank] if meeting.rank not in refused else np.zeros_like(values)
        good_tails = [tails[rank] for rank in kept]
        if not kept:
            return Reduced(np.zeros_like(values), np.zeros_like(tail), unsent)
        summed: Vector = np.sum(good_tails, axis=0, dtype=np.float32)
        weights = [float(each[0]) for each in good_tails]
        means = [vectors[rank] / np.float32(weight) for rank, weight in zip(kept, weights, strict=True) if weight > 0]
        if not means:
            return Reduced(np.zeros_like(values), summed, unsent)
        return Reduced(robust_mean(means, self._rule) * np.float32(summed[0]), summed, unsent)

    def _read(self, body: Body, size: int, count: int, tail: int, key: int) -> Vector:
        """A member's vector; nothing of use if it is not as long as it should be, or its numbers make no sense."""
        if len(body) != size + 4 * tail:
            return np.full(count, np.nan, dtype=np.float32)
        numbers = np.frombuffer(body[size:], dtype=np.float32)
        if not ((numbers >= 0) & (numbers <= LARGEST)).all():
            return np.full(count, np.nan, dtype=np.float32)
        encoded = torch.frombuffer(bytearray(body[:size]), dtype=torch.uint8)
        try:
            decoded: Vector = self._codec.decode(encoded, count, key).numpy()
        except (RuntimeError, IndexError):
            return np.full(count, np.nan, dtype=np.float32)
        return decoded


def _sound(vectors: list[Vector]) -> tuple[list[int], dict[int, str]]:
    """Which members' vectors are of use, and what is wrong with the others."""
    with np.errstate(over="ignore", invalid="ignore"):
        norms = [float(np.sqrt(np.sum(np.square(each, dtype=np.float64)))) for each in vectors]
    refused = {rank: "not finite" for rank, norm in enumerate(norms) if not math.isfinite(norm)}
    finite = [norm for norm in norms if math.isfinite(norm)]
    middle = float(np.median(finite)) if finite else 0.0
    for rank, norm in enumerate(norms):
        if rank not in refused and norm > FAR_OUT * middle > 0:
            refused[rank] = f"{norm / middle:.0f} times as long as the median"
    return [rank for rank in range(len(vectors)) if rank not in refused], refused


def robust_mean(vectors: list[Vector], rule: Rule) -> Vector:
    """One vector for many.

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
