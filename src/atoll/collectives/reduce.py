"""Reductions: how the members of a round add up their vectors, also when they send them compressed.

A reduction returns the sum of all sent values, the same bytes on every member, and the part of the member's own values
that is not in it: error feedback keeps that part for the next round.  A short tail of numbers travels with the values;
these are always added exactly.
"""

import abc
import contextlib
import itertools
from dataclasses import dataclass
from functools import partial
from typing import ClassVar, Literal

import numpy as np
import torch

from atoll.codecs.base import Codec
from atoll.codecs.bits import pack, packed_size, unpack, width
from atoll.codecs.dense import Dense
from atoll.codecs.sparse import kept
from atoll.collectives import COLLECTIVES, Body, Round, Spawn, broadcast
from atoll.errors import StrategyError
from atoll.memory import empty
from atoll.vectors import Vector, copied, minus
from atoll.world.base import World

SEEN = ("direct", "gather", "star")
"""Collectives in which the member that computes a sum sees each member's vector."""

__all__ = ["AgreedTopK", "Coded", "Plain", "Reduced", "Reduction", "fitting"]


@dataclass(frozen=True, slots=True)
class Reduced:
    """The result of a reduction."""

    total: Vector
    tail: Vector
    unsent: Vector | None = None
    """The part of the member's own values that is not in the total; `None`: nothing."""
    via: str = ""
    """The collective used, if the reduction chose it itself."""


def fitting(via: str, reduction: "Reduction") -> str:
    """The requested collective, if the reduction supports it; for `auto`, the first that it supports."""
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

    by_block: ClassVar[bool] = True
    """Whether long vectors may be added up block by block, several at a time."""

    @property
    @abc.abstractmethod
    def vias(self) -> tuple[str, ...]:
        """The collectives that the reduction supports."""

    @property
    @abc.abstractmethod
    def exact(self) -> bool:
        """Whether every value arrives without loss."""

    def start(self, world: World, members: tuple[str, ...], spawn: Spawn) -> None:  # noqa: B027 - most need nothing
        """Called once, before the first round."""

    def restart(self) -> None:  # noqa: B027 - most remember nothing
        """Called when the members have changed: all forget what they learned about the last members and rounds."""

    @abc.abstractmethod
    async def __call__(self, meeting: Round, values: Vector, tail: Vector, via: str) -> Reduced:
        """Adds up; `tail` travels beside the values and is always added exactly."""


@dataclass(frozen=True, slots=True)
class Plain(Reduction):
    """Uncompressed values, by any collective.

    In `direct`, `gather` and `star`, the member that computes a sum sees each member's values and checks them first.
    In `ring`, `tree` and `hd`, partial sums travel, so only the result can be checked.
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
    """Values compressed by a codec.

    Encoded forms that can be added use any collective.  The member that sums other forms decodes, adds and encodes
    them again (`star`, `direct`), or every member gets all of them (`gather`).  Sparse forms use `gather` only: a sum
    of sparse vectors is not sparse, and encoding it would lose most of it.

    Args:
        codec: encodes the values.
        by_senders: the mean of a position is over the members that sent a value for it, not over all; a member whose
            norm is above the median member's is scaled down to that (SparseLoCo).
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
        """Reduces by a collective in which the member that computes a sum sees each member's vector."""
        ways = {"direct": self._direct, "gather": self._gathered, "star": self._star}
        return await ways[via](meeting, values, tail)

    def _encode(self, values: Vector, meeting: Round) -> bytes:
        if self.exact:
            return np.ascontiguousarray(values).tobytes()
        return self.codec.encode(torch.tensor(values), meeting.key).numpy().tobytes()

    def _decode(self, encoded: Body, count: int, meeting: Round) -> Vector:
        if self.exact:
            return np.frombuffer(encoded, dtype=np.float32, count=count)
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
        """The part of a member's values that was not sent."""
        return None if self.exact else minus(values, sent)

    async def _summed(self, meeting: Round, values: Vector, tail: Vector, via: str) -> Reduced:
        offload = meeting.offload
        numbers = np.frombuffer(await offload(lambda: self._encode(values, meeting)), dtype=np.float32)
        total = await COLLECTIVES[via](meeting, np.concatenate([numbers, tail]))

        def read() -> Reduced:
            decoded = self._decode(total[: len(numbers)].tobytes(), len(values), meeting)
            sent = self._decode(numbers.tobytes(), len(values), meeting)
            return Reduced(decoded, total[len(numbers) :], self._left(values, sent))

        return await offload(read, values=len(values))

    async def _gathered(self, meeting: Round, values: Vector, tail: Vector) -> Reduced:
        offload = meeting.offload
        own = await offload(lambda: self._encode(values, meeting) + tail.tobytes(), values=len(values))
        bodies = await meeting.gather(own)

        def add_up() -> Reduced:
            read = [self._read(body, len(values), tail, meeting) for body in bodies]
            vectors, tails = [vector for vector, _ in read], [each for _, each in read]
            unsent = self._left(values, vectors[meeting.rank])
            judge, members = meeting.judge, meeting.members
            if not self.by_senders:
                return Reduced(*judge.add_up(members, vectors, tails, meeting.origin, alike=True), unsent)
            tails, factors = judge.trailers(members, tails)
            scales = judge.scales(members, vectors, tails, factors, meeting.origin, alike=True)
            return _by_senders(vectors, scales, tails, unsent)

        async with meeting.in_turn():
            return await offload(add_up, values=len(values) * meeting.size)

    async def _star(self, meeting: Round, values: Vector, tail: Vector) -> Reduced:
        offload, count = meeting.offload, len(values)

        def own() -> tuple[bytes, Vector | None]:
            encoded = self._encode(values, meeting)
            return encoded + tail.tobytes(), self._left(values, self._decode(encoded, count, meeting))

        def add_up(others: list[Body]) -> tuple[bytes, Vector | None]:
            read = [(values, tail), *(self._read(each, count, tail, meeting) for each in others)]
            vectors, tails = [each for each, _ in read], [each for _, each in read]
            total, summed = meeting.judge.add_up(meeting.members, vectors, tails, meeting.origin)
            encoded = self._encode(total, meeting)
            return encoded + summed.tobytes(), self._left(total, self._decode(encoded, count, meeting))

        async with meeting.sending() as send:
            if meeting.rank > 0:
                given, unsent = await offload(own, values=count)
                send.raw(0, "up", given)
                body = await meeting.receive_raw(0, "down")
            else:
                others = [await meeting.receive_raw(rank, "up") for rank in range(1, meeting.size)]
                async with meeting.in_turn():
                    body, unsent = await offload(lambda: add_up(others), values=count * meeting.size)
                for rank in range(1, meeting.size):
                    send.raw(rank, "down", body)
        return Reduced(*await offload(lambda: self._read(body, count, tail, meeting), values=count), unsent)

    async def _direct(self, meeting: Round, values: Vector, tail: Vector) -> Reduced:
        rank, offload = meeting.rank, meeting.offload
        ends = np.cumsum([0, *(len(share) for share in np.array_split(values, meeting.size))]).tolist()
        spans = [slice(start, stop) for start, stop in itertools.pairwise(ends)]
        unsent = None if self.exact else empty(len(values))
        others = [(rank + step) % meeting.size for step in range(1, meeting.size)]
        own, count = spans[rank], spans[rank].stop - spans[rank].start
        origin = None if meeting.origin is None else meeting.origin[own]
        result = empty(len(values))

        def share(other: int) -> bytes:
            given = values[spans[other]]
            encoded = self._encode(given, meeting)
            if unsent is not None:
                np.subtract(given, self._decode(encoded, len(given), meeting), out=unsent[spans[other]])
            return encoded + tail.tobytes()

        def add_up(bodies: dict[int, Body]) -> tuple[bytes, Vector]:
            read = {other: self._read(body, count, tail, meeting) for other, body in bodies.items()}
            read[rank] = values[own], tail
            parts = [read[other][0] for other in range(meeting.size)]
            tails = [read[other][1] for other in range(meeting.size)]
            usual = meeting.judge.usual(values, float(tail[0]), meeting.size, meeting.origin)
            total, summed = meeting.judge.add_up(meeting.members, parts, tails, origin, usual=usual)
            encoded = self._encode(total, meeting)
            result[own] = self._decode(encoded, count, meeting)
            if unsent is not None:
                np.subtract(total, result[own], out=unsent[own])
            return encoded, summed

        def take(other: int, body: Body) -> None:
            result[spans[other]] = self._decode(body, spans[other].stop - spans[other].start, meeting)

        async with meeting.sending() as send:
            for other in others:
                send.raw(other, "part", await offload(partial(share, other), values=count))
            bodies = {other: await meeting.receive_raw(other, "part") for other in others}
            async with meeting.in_turn():
                encoded, summed = await offload(lambda: add_up(bodies), values=count * meeting.size)
            for other in others:
                send.raw(other, "sum", encoded)
            for other in others:
                await offload(partial(take, other, await meeting.receive_raw(other, "sum")), values=count)
        return Reduced(result, summed, unsent)


def _by_senders(vectors: list[Vector], scales: list[float], tails: list[Vector], unsent: Vector | None) -> Reduced:
    """The mean of each position over the members that sent a value for it, with long vectors scaled down."""
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


@dataclass(frozen=True, slots=True)
class AgreedTopK(Reduction):
    """AR-Topk (Tyagi & Swany, 2023): all members send the places of the leader's largest values.

    STAR: members lead in turn.  VAR: the member with the heaviest largest values leads; an all-gather of one number
    each finds it.
    """

    ratio: float = 0.01
    lead: Literal["star", "var"] = "star"

    exact = False

    @property
    def vias(self) -> tuple[str, ...]:
        return tuple(COLLECTIVES)

    async def __call__(self, meeting: Round, values: Vector, tail: Vector, via: str) -> Reduced:
        count, offload = len(values), meeting.offload
        keep = kept(count, self.ratio)
        largest = await offload(lambda: torch.tensor(values).abs().topk(keep, sorted=False), values=count)
        leader = meeting.key % meeting.size
        if self.lead == "var":
            weight = np.array([float(largest.values.square().sum())], dtype=np.float32)
            bodies = await meeting.gather(weight.tobytes(), "weight")
            leader = int(np.argmax([np.frombuffer(each, dtype=np.float32)[0] for each in bodies]))
        bits = width(count - 1)
        own = b""
        if leader == meeting.rank:
            own = await offload(lambda: pack(largest.indices.sort().values, bits).numpy().tobytes())
        body = await broadcast(meeting, leader, own)
        assert len(body) == packed_size(keep, bits)
        places = await offload(lambda: unpack(_bytes(body), keep, bits).long().numpy())
        summed = await COLLECTIVES[via](meeting, np.concatenate([values[places], tail]))

        def spread() -> Reduced:
            total = np.zeros_like(values)
            total[places] = summed[:keep]
            unsent = values.copy()
            unsent[places] = 0
            return Reduced(total, summed[keep:], unsent)

        return await offload(spread, values=count)


def _bytes(body: Body) -> torch.Tensor:
    return torch.frombuffer(bytearray(body), dtype=torch.uint8) if body else torch.zeros(0, dtype=torch.uint8)


def _add(vectors: list[Vector]) -> Vector:
    """The sum, in rank order, not in order of arrival."""
    total = copied(vectors[0])
    for each in vectors[1:]:
        total += each
    return total
