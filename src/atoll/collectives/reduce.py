"""Reductions: how the members of a round add up their vectors, also when they send them compressed.

A reduction returns the sum of all sent values, the same bytes on every member, and the part of the member's own values
that is not in it: error feedback keeps that part for the next round.  A short tail of numbers travels with the values;
these are always added exactly.
"""

import abc
import contextlib
import math
from dataclasses import dataclass
from functools import partial
from statistics import median
from typing import ClassVar, Literal

import numpy as np
import torch

from atoll.codecs.base import Codec
from atoll.codecs.bits import pack, packed_size, unpack, width
from atoll.codecs.dense import Dense
from atoll.codecs.sparse import kept
from atoll.collectives import COLLECTIVES, Body, Round, Spawn, broadcast
from atoll.collectives.judge import OwnBlock, change_of
from atoll.errors import StrategyError
from atoll.vectors import (
    Numbers,
    Vector,
    bytes_of,
    common_length,
    copied,
    empty,
    minus,
    of_array,
    of_bytes,
    sealed,
    zeros,
)
from atoll.world.base import World

SEEN = ("direct", "gather", "star")
"""Collectives in which the member that computes a sum sees each member's vector."""
SUMS = tuple(dict.fromkeys(("direct", *COLLECTIVES)))
"""All collectives.  `direct` comes first: none sends fewer bytes over any uplink, and among more than two members none
takes fewer latencies for as many bytes.
"""

__all__ = ["SUMS", "AgreedTopK", "Coded", "Plain", "Reduced", "Reduction", "carried", "fitting"]


@dataclass(frozen=True, slots=True)
class Reduced:
    """The result of a reduction."""

    total: Vector
    """The reader may change it."""
    tail: Numbers
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

    def prepare(self, values: Vector, members: int) -> None:  # noqa: B027 - most need nothing
        """Computes once, before training, what exchanges of such a block will: compiles kernels, for a GPU."""

    def begin(self, meeting: Round, tail: int) -> None:  # noqa: B027 - most have nothing to plan
        """Called before the blocks of a round, with the count of numbers behind the first one."""

    def restart(self) -> None:  # noqa: B027 - most remember nothing
        """Called when the members have changed: all forget what they learned about the last members and rounds."""

    @abc.abstractmethod
    async def __call__(self, meeting: Round, values: Vector, tail: Numbers, via: str) -> Reduced:
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
        return SUMS

    async def __call__(self, meeting: Round, values: Vector, tail: Numbers, via: str) -> Reduced:
        if via in SEEN:
            return await Coded(Dense()).seen(meeting, values, tail, via)
        return Reduced(*await carried(meeting, values, tail, via))


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
            return SUMS
        return ("gather",) if self.codec.sparse else ("direct", "star", "gather")

    def prepare(self, values: Vector, members: int) -> None:
        for count in {len(values), *map(len, values.tensor_split(members))} - {0}:
            encoded = bytes_of(self.codec.encode(values[:count]))
            self.codec.decode(of_bytes(encoded, torch.uint8, values.device), count)

    async def __call__(self, meeting: Round, values: Vector, tail: Numbers, via: str) -> Reduced:
        if self.codec.summable and not self.by_senders and via not in SEEN:
            return await self._summed(meeting, values, tail, via)
        return await self.seen(meeting, values, tail, via)

    async def seen(self, meeting: Round, values: Vector, tail: Numbers, via: str) -> Reduced:
        """Reduces by a collective in which the member that computes a sum sees each member's vector."""
        ways = {"direct": self._direct, "gather": self._gathered, "star": self._star}
        return await ways[via](meeting, values, tail)

    def _encode(self, values: Vector, meeting: Round) -> torch.Tensor:
        """The bytes of a vector; of an exact one they are its own memory."""
        return values.view(torch.uint8) if self.exact else self.codec.encode(values, meeting.key)

    def _decode(self, encoded: torch.Tensor, count: int, meeting: Round) -> Vector:
        return encoded.view(torch.float32) if self.exact else self.codec.decode(encoded, count, meeting.key)

    def _read(self, body: Body, count: int, tail: Numbers, meeting: Round) -> tuple[Vector, Numbers]:
        """A member's values and trailer; not finite where they cannot be read."""
        size = self.codec.size(count)
        if len(body) == size + tail.nbytes:
            with contextlib.suppress(RuntimeError, IndexError, ValueError):
                encoded = of_bytes(body[:size], torch.uint8, meeting.device)
                return self._decode(encoded, count, meeting), np.frombuffer(body[size:], dtype=np.float32)
        return zeros(count, meeting.device).fill_(math.nan), np.zeros_like(tail)

    def _left(self, values: Vector, sent: Vector) -> Vector | None:
        """The part of a member's values that was not sent."""
        return None if self.exact else minus(values, sent)

    async def _summed(self, meeting: Round, values: Vector, tail: Numbers, via: str) -> Reduced:
        offload, count = meeting.offload, len(values)
        encoded = await offload(lambda: self._encode(values, meeting), values=count)
        total, summed = await carried(meeting, encoded.view(torch.float32), tail, via)

        def read() -> Reduced:
            decoded = self._decode(total.view(torch.uint8), count, meeting)
            return Reduced(decoded, summed, self._left(values, self._decode(encoded, count, meeting)))

        return await offload(read, values=count)

    async def _gathered(self, meeting: Round, values: Vector, tail: Numbers) -> Reduced:
        offload = meeting.offload
        own = await offload(lambda: sealed(self._encode(values, meeting), tail), values=len(values))
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

    async def _star(self, meeting: Round, values: Vector, tail: Numbers) -> Reduced:
        offload, count = meeting.offload, len(values)

        def own() -> tuple[Body, Vector | None]:
            encoded = self._encode(values, meeting)
            return sealed(encoded, tail), self._left(values, self._decode(encoded, count, meeting))

        def add_up(others: list[Body]) -> tuple[Body, Vector | None]:
            read = [(values, tail), *(self._read(each, count, tail, meeting) for each in others)]
            vectors, tails = [each for each, _ in read], [each for _, each in read]
            total, summed = meeting.judge.add_up(meeting.members, vectors, tails, meeting.origin)
            encoded = self._encode(total, meeting)
            return sealed(encoded, summed), self._left(total, self._decode(encoded, count, meeting))

        def result(body: Body, unsent: Vector | None) -> Reduced:
            total, summed = self._read(body, count, tail, meeting)
            return Reduced(copied(total) if self.exact else total, summed, unsent)

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
        return await offload(lambda: result(body, unsent), values=count)

    async def _direct(self, meeting: Round, values: Vector, tail: Numbers) -> Reduced:
        rank, offload = meeting.rank, meeting.offload
        shares = values.tensor_split(meeting.size)
        unsent = None if self.exact else empty(len(values), meeting.device)
        left = None if unsent is None else unsent.tensor_split(meeting.size)
        others = [(rank + step) % meeting.size for step in range(1, meeting.size)]
        count = len(shares[rank])
        origin = None if meeting.origin is None else meeting.origin.tensor_split(meeting.size)[rank]
        result = empty(len(values), meeting.device)
        results = result.tensor_split(meeting.size)

        def share(other: int) -> Body:
            given = shares[other]
            encoded = self._encode(given, meeting)
            if left is not None:
                torch.sub(given, self._decode(encoded, len(given), meeting), out=left[other])
            return sealed(encoded, tail)

        def add_up(bodies: dict[int, Body]) -> tuple[Body, Numbers]:
            read = {other: self._read(body, count, tail, meeting) for other, body in bodies.items()}
            read[rank] = shares[rank], tail
            parts = [read[other][0] for other in range(meeting.size)]
            tails = [read[other][1] for other in range(meeting.size)]
            block = OwnBlock(change_of(values, float(tail[0]), meeting.origin), meeting.size)
            total, summed = meeting.judge.add_up(meeting.members, parts, tails, origin, block=block)
            encoded = self._encode(total, meeting)
            results[rank].copy_(self._decode(encoded, count, meeting))
            if left is not None:
                torch.sub(total, results[rank], out=left[rank])
            return bytes_of(encoded), summed

        def take(other: int, body: Body) -> None:
            encoded = of_bytes(body, torch.uint8, meeting.device)
            results[other].copy_(self._decode(encoded, len(results[other]), meeting))

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


async def carried(meeting: Round, values: Vector, tail: Numbers, via: str) -> tuple[Vector, Numbers]:
    """The sum of vectors and of the numbers behind them."""
    both = torch.cat([values, of_array(tail, meeting.device)])
    total = await COLLECTIVES[via](meeting, both)
    return copied(total[: len(values)]), total[len(values) :].cpu().numpy()


def _by_senders(vectors: list[Vector], scales: list[float], tails: list[Numbers], unsent: Vector | None) -> Reduced:
    """The mean of each position over the members that sent a value for it, with long vectors scaled down."""
    vectors = [each if scale else torch.zeros_like(each) for each, scale in zip(vectors, scales, strict=True)]
    norms = [common_length(each) for each in vectors]
    middle = median(norms)
    total, senders = zeros(len(vectors[0]), vectors[0].device), zeros(len(vectors[0]), vectors[0].device)
    for each, norm in zip(vectors, norms, strict=True):
        total += each * min(1.0, middle / max(norm, 1e-30))
        senders += each != 0
    total /= senders.clamp_(min=1)
    summed: Numbers = np.sum(tails, axis=0, dtype=np.float32)
    # The round divides by the sum of weights, the first number of the tail.
    return Reduced(total.mul_(float(summed[0])), summed, unsent)


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
        return SUMS

    async def __call__(self, meeting: Round, values: Vector, tail: Numbers, via: str) -> Reduced:
        count, offload = len(values), meeting.offload
        keep = kept(count, self.ratio)
        largest = await offload(lambda: values.abs().topk(keep, sorted=False), values=count)
        leader = meeting.key % meeting.size
        if self.lead == "var":
            weight = np.array([float(largest.values.square().sum())], dtype=np.float32)
            bodies = await meeting.gather(weight.tobytes(), "weight")
            leader = int(np.argmax([np.frombuffer(each, dtype=np.float32)[0] for each in bodies]))
        bits = width(count - 1)
        own: Body = b""
        if leader == meeting.rank:
            own = await offload(lambda: bytes_of(pack(largest.indices.sort().values, bits)))
        body = await broadcast(meeting, leader, own)
        assert len(body) == packed_size(keep, bits)
        places = await offload(lambda: unpack(of_bytes(body, torch.uint8, meeting.device), keep, bits).long())
        summed, tails = await carried(meeting, values[places], tail, via)

        def spread() -> Reduced:
            total, unsent = zeros(count, meeting.device), copied(values)
            total[places] = summed
            unsent[places] = 0
            return Reduced(total, tails, unsent)

        return await offload(spread, values=count)
