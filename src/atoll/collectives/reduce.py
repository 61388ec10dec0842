"""How the members of a round add up their vectors when they say less than all of it.

A reduction returns the sum of what everybody sent, the same bytes on every member, and what of the member's own values
is not in it: error feedback keeps that for the next round.  Beside the values goes a short tail of numbers that are
always added exactly.
"""

import abc
import contextlib
import itertools
from dataclasses import dataclass
from typing import Literal

import numpy as np
import torch

from atoll.codecs.base import Codec, from_bytes
from atoll.codecs.bits import pack, packed_size, unpack, width
from atoll.codecs.dense import Dense
from atoll.codecs.sparse import kept
from atoll.collectives import COLLECTIVES, Body, Round, Spawn, broadcast
from atoll.errors import StrategyError
from atoll.vectors import Vector
from atoll.world.base import World

SEEN = ("direct", "gather", "star")
"""Collectives in which who adds up sees what each member brings."""

__all__ = ["AgreedTopK", "Coded", "Plain", "Reduced", "Reduction", "fitting"]


@dataclass(frozen=True, slots=True)
class Reduced:
    """The result of a reduction."""

    total: Vector
    tail: Vector
    unsent: Vector | None = None
    """What of the member's own values is not in the total; `None`: nothing."""
    via: str = ""
    """How it went, where the reduction chose that itself."""


def fitting(via: str, reduction: "Reduction") -> str:
    """The collective that was asked for, if the reduction can go by it; the first that fits for `auto`."""
    if via == "auto":
        return reduction.vias[0]
    if via not in ("best", *reduction.vias):
        raise StrategyError(
            f"{via!r} adds up values on their way, and what this codec sends cannot be added: expected "
            f"via={'|'.join(reduction.vias)}"
        )
    return via


class Reduction(abc.ABC):
    """One way to add up."""

    __slots__ = ()

    @property
    @abc.abstractmethod
    def vias(self) -> tuple[str, ...]:
        """The collectives that it can go by."""

    @property
    @abc.abstractmethod
    def exact(self) -> bool:
        """Whether all of every value arrives."""

    def start(self, world: World, members: tuple[str, ...], spawn: Spawn) -> None:  # noqa: B027 - most need nothing
        """Called once, before the first round."""

    def restart(self) -> None:  # noqa: B027 - most remember nothing
        """Other members from now on: what was learned of the last ones, and from their rounds, is forgotten by all."""

    @abc.abstractmethod
    async def __call__(self, meeting: Round, values: Vector, tail: Vector, via: str) -> Reduced:
        """Adds up; `tail` travels beside the values and is always added exactly."""


@dataclass(frozen=True, slots=True)
class Plain(Reduction):
    """Every value as it is, by any collective.

    Where whoever adds up sees each member's values (`direct`, `gather`, `star`), it looks at them first; where sums
    travel on (`ring`, `tree`, `hd`), only their result can be looked at.
    """

    exact = True

    @property
    def vias(self) -> tuple[str, ...]:
        return tuple(dict.fromkeys(("direct", *COLLECTIVES)))

    async def __call__(self, meeting: Round, values: Vector, tail: Vector, via: str) -> Reduced:
        if via in SEEN:
            return await Coded(Dense()).seen(meeting, values, tail, via)
        total = await COLLECTIVES[via](meeting, np.concatenate([values, tail]))
        return Reduced(total[: len(values)], total[len(values) :])


@dataclass(frozen=True, slots=True)
class Coded(Reduction):
    """Values through a codec.

    Forms that can be added go by any collective.  Others are decoded, added and encoded again by whoever adds them up
    (`star`, `direct`), or everybody gets everybody's (`gather`).  Sparse ones go by `gather` only: a sum of sparse
    vectors is not sparse, and encoding it would lose most of it.

    Args:
        codec: what goes over the wire.
        by_senders: the mean of a position is over those who sent something for it, not over all; a member whose values
            are longer than the median member's is scaled down to that (SparseLoCo).
    """

    codec: Codec
    by_senders: bool = False

    @property
    def exact(self) -> bool:
        return isinstance(self.codec, Dense)

    @property
    def vias(self) -> tuple[str, ...]:
        if self.by_senders:
            return ("gather",)
        if self.codec.summable:
            return tuple(COLLECTIVES)
        return ("gather",) if self.codec.sparse else ("direct", "star", "gather")

    async def __call__(self, meeting: Round, values: Vector, tail: Vector, via: str) -> Reduced:
        if self.codec.summable and not self.by_senders and via not in SEEN:
            return await self._summed(meeting, values, tail, via)
        return await self.seen(meeting, values, tail, via)

    async def seen(self, meeting: Round, values: Vector, tail: Vector, via: str) -> Reduced:
        """By a collective in which who adds up sees what each member brings."""
        ways = {"direct": self._direct, "gather": self._gathered, "star": self._star}
        return await ways[via](meeting, values, tail)

    def _encode(self, values: Vector, meeting: Round) -> bytes:
        return self.codec.encode(torch.tensor(values), meeting.key).numpy().tobytes()

    def _decode(self, encoded: Body, count: int, meeting: Round) -> Vector:
        decoded: Vector = self.codec.decode(_bytes(encoded), count, meeting.key).numpy()
        return decoded

    def _read(self, body: Body, count: int, tail: Vector, meeting: Round) -> tuple[Vector, Vector]:
        """A member's values and trailer; not finite where they cannot be read."""
        size = self.codec.size(count)
        if len(body) == size + tail.nbytes:
            with contextlib.suppress(RuntimeError, IndexError, ValueError):
                return self._decode(body[:size], count, meeting), np.frombuffer(body[size:], dtype=np.float32)
        return np.full(count, np.nan, dtype=np.float32), np.zeros_like(tail)

    def _left(self, values: Vector, sent: Vector) -> Vector | None:
        """What of a member's values was not sent."""
        return None if self.exact else values - sent

    async def _summed(self, meeting: Round, values: Vector, tail: Vector, via: str) -> Reduced:
        own = self.codec.encode(torch.tensor(values), meeting.key)
        numbers = from_bytes(own, torch.float32, 0, len(own) // 4).numpy()
        total = await COLLECTIVES[via](meeting, np.concatenate([numbers, tail]))
        decoded = self._decode(total[: len(numbers)].tobytes(), len(values), meeting)
        sent = self._decode(numbers.tobytes(), len(values), meeting)
        return Reduced(decoded, total[len(numbers) :], self._left(values, sent))

    async def _gathered(self, meeting: Round, values: Vector, tail: Vector) -> Reduced:
        bodies = await meeting.gather(self._encode(values, meeting) + tail.tobytes())
        read = [self._read(body, len(values), tail, meeting) for body in bodies]
        vectors, tails = [vector for vector, _ in read], [each for _, each in read]
        unsent = self._left(values, vectors[meeting.rank])
        if not self.by_senders:
            return Reduced(*meeting.judge.add_up(meeting.members, vectors, tails, alike=True), unsent)
        tails, factors = meeting.judge.trailers(meeting.members, tails)
        scales = meeting.judge.scales(meeting.members, vectors, tails, factors, alike=True)
        vectors = [each if scale else np.zeros_like(each) for each, scale in zip(vectors, scales, strict=True)]
        norms = [float(np.linalg.norm(each)) for each in vectors]
        middle = float(np.median(norms))
        clipped = [
            each * np.float32(min(1.0, middle / max(norm, 1e-30))) for each, norm in zip(vectors, norms, strict=True)
        ]
        senders = np.sum([each != 0 for each in vectors], axis=0).clip(1).astype(np.float32)
        total_tail = _add(tails)
        # The round divides by the sum of weights, the first number of the tail.
        return Reduced(_add(clipped) / senders * total_tail[0], total_tail, unsent)

    async def _star(self, meeting: Round, values: Vector, tail: Vector) -> Reduced:
        own = self._encode(values, meeting)
        unsent = self._left(values, self._decode(own, len(values), meeting))
        async with meeting.sending() as send:
            if meeting.rank > 0:
                send.raw(0, "up", own + tail.tobytes())
                body = await meeting.receive_raw(0, "down")
            else:
                others = [await meeting.receive_raw(rank, "up") for rank in range(1, meeting.size)]
                read = [(values, tail), *(self._read(each, len(values), tail, meeting) for each in others)]
                total, summed = meeting.judge.add_up(
                    meeting.members, [each for each, _ in read], [each for _, each in read]
                )
                encoded = self._encode(total, meeting)
                unsent = self._left(total, self._decode(encoded, len(values), meeting))
                body = encoded + summed.tobytes()
                for rank in range(1, meeting.size):
                    send.raw(rank, "down", body)
        return Reduced(*self._read(body, len(values), tail, meeting), unsent)

    async def _direct(self, meeting: Round, values: Vector, tail: Vector) -> Reduced:
        rank, members = meeting.rank, meeting.members
        ends = np.cumsum([0, *(len(share) for share in np.array_split(values, meeting.size))]).tolist()
        spans = [slice(start, stop) for start, stop in itertools.pairwise(ends)]
        unsent = None if self.exact else np.zeros_like(values)
        others = [(rank + step) % meeting.size for step in range(1, meeting.size)]
        own, count = spans[rank], spans[rank].stop - spans[rank].start
        result = np.empty_like(values)
        async with meeting.sending() as send:
            for other in others:
                share = values[spans[other]]
                encoded = self._encode(share, meeting)
                if unsent is not None:
                    unsent[spans[other]] = share - self._decode(encoded, len(share), meeting)
                send.raw(other, "part", encoded + tail.tobytes())
            read = {
                other: self._read(await meeting.receive_raw(other, "part"), count, tail, meeting) for other in others
            }
            read[rank] = values[own], tail
            parts, tails = (
                [read[other][0] for other in range(meeting.size)],
                [read[other][1] for other in range(meeting.size)],
            )
            usual = meeting.judge.usual(values, float(tail[0]), meeting.size)
            total, summed = meeting.judge.add_up(members, parts, tails, own, usual=usual)
            encoded = self._encode(total, meeting)
            result[own] = self._decode(encoded, count, meeting)
            if unsent is not None:
                unsent[own] = total - result[own]
            for other in others:
                send.raw(other, "sum", encoded)
            for other in others:
                size = spans[other].stop - spans[other].start
                result[spans[other]] = self._decode(await meeting.receive_raw(other, "sum"), size, meeting)
        return Reduced(result, summed, unsent)


@dataclass(frozen=True, slots=True)
class AgreedTopK(Reduction):
    """AR-Topk (Tyagi & Swany, 2023): one member's largest values say which places all of them send.

    STAR: members lead in turn.  VAR: whose largest values weigh the most, found by an all-gather of one number each.
    """

    ratio: float = 0.01
    lead: Literal["star", "var"] = "star"

    exact = False

    @property
    def vias(self) -> tuple[str, ...]:
        return tuple(COLLECTIVES)

    async def __call__(self, meeting: Round, values: Vector, tail: Vector, via: str) -> Reduced:
        count = len(values)
        keep = kept(count, self.ratio)
        largest = torch.tensor(values).abs().topk(keep, sorted=False)
        leader = meeting.key % meeting.size
        if self.lead == "var":
            weight = np.array([float(largest.values.square().sum())], dtype=np.float32)
            bodies = await meeting.gather(weight.tobytes(), "weight")
            leader = int(np.argmax([np.frombuffer(each, dtype=np.float32)[0] for each in bodies]))
        bits = width(count - 1)
        own = pack(largest.indices.sort().values, bits).numpy().tobytes() if leader == meeting.rank else b""
        body = await broadcast(meeting, leader, own)
        assert len(body) == packed_size(keep, bits)
        places = unpack(_bytes(body), keep, bits).long().numpy()
        summed = await COLLECTIVES[via](meeting, np.concatenate([values[places], tail]))
        total = np.zeros_like(values)
        total[places] = summed[:keep]
        unsent = values.copy()
        unsent[places] = 0
        return Reduced(total, summed[keep:], unsent)


def _bytes(body: Body) -> torch.Tensor:
    return torch.frombuffer(bytearray(body), dtype=torch.uint8) if body else torch.zeros(0, dtype=torch.uint8)


def _add(vectors: list[Vector]) -> Vector:
    """In the order of ranks, whoever came first."""
    total = vectors[0].copy()
    for each in vectors[1:]:
        total += each
    return total
