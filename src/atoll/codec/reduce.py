"""How the members of a round add up their vectors when they say less than all of it.

A reduction returns the sum of what everybody sent, the same bytes on every member, and what of the member's own values
is not in it: error feedback keeps that for the next round.  Beside the values goes a short tail of numbers that are
always added exactly.
"""

import abc
from dataclasses import dataclass
from typing import Literal

import numpy as np
import torch

from atoll.codec.base import Codec, from_bytes
from atoll.codec.bits import pack, packed_size, unpack, width
from atoll.codec.dense import Dense
from atoll.codec.sparse import kept
from atoll.errors import StrategyError
from atoll.exchange import COLLECTIVES, Body, Round, Spawn, Vector, broadcast
from atoll.world.base import World

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
    """Every value as it is, by any collective."""

    exact = True
    vias = tuple(COLLECTIVES)

    async def __call__(self, meeting: Round, values: Vector, tail: Vector, via: str) -> Reduced:
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
        if self.codec.summable and not self.by_senders:
            return await self._summed(meeting, values, tail, via)
        if via == "gather":
            return await self._gathered(meeting, values, tail)
        return await (self._star if via == "star" else self._direct)(meeting, values, tail)

    def _encode(self, values: Vector, meeting: Round) -> bytes:
        return self.codec.encode(torch.tensor(values), meeting.key).numpy().tobytes()

    def _decode(self, encoded: Body, count: int, meeting: Round) -> Vector:
        decoded: Vector = self.codec.decode(_bytes(encoded), count, meeting.key).numpy()
        return decoded

    async def _summed(self, meeting: Round, values: Vector, tail: Vector, via: str) -> Reduced:
        own = self.codec.encode(torch.tensor(values), meeting.key)
        numbers = from_bytes(own, torch.float32, 0, len(own) // 4).numpy()
        total = await COLLECTIVES[via](meeting, np.concatenate([numbers, tail]))
        decoded = self._decode(total[: len(numbers)].tobytes(), len(values), meeting)
        sent = self._decode(numbers.tobytes(), len(values), meeting)
        return Reduced(decoded, total[len(numbers) :], values - sent)

    async def _gathered(self, meeting: Round, values: Vector, tail: Vector) -> Reduced:
        size, count = self.codec.size(len(values)), len(values)
        body = self._encode(values, meeting)
        bodies = await meeting.gather(body + tail.tobytes())
        vectors = [self._decode(each[:size], count, meeting) for each in bodies]
        tails = [np.frombuffer(each[size:], dtype=np.float32) for each in bodies]
        total_tail = _add(tails)
        if not self.by_senders:
            return Reduced(_add(vectors), total_tail, values - vectors[meeting.rank])
        norms = [float(np.linalg.norm(each)) for each in vectors]
        middle = float(np.median(norms))
        clipped = [
            each * np.float32(min(1.0, middle / max(norm, 1e-30))) for each, norm in zip(vectors, norms, strict=True)
        ]
        senders = np.sum([each != 0 for each in vectors], axis=0).clip(1).astype(np.float32)
        # The round divides by the sum of weights, the first number of the tail.
        total = _add(clipped) / senders * total_tail[0]
        return Reduced(total, total_tail, values - vectors[meeting.rank])

    async def _star(self, meeting: Round, values: Vector, tail: Vector) -> Reduced:
        size, count = self.codec.size(len(values)), len(values)
        own = self._encode(values, meeting)
        unsent = values - self._decode(own, count, meeting)
        async with meeting.sending() as send:
            if meeting.rank > 0:
                send.raw(0, "up", own + tail.tobytes())
                body = await meeting.receive_raw(0, "down")
            else:
                others = [await meeting.receive_raw(rank, "up") for rank in range(1, meeting.size)]
                vectors = [values, *(self._decode(each[:size], count, meeting) for each in others)]
                tails = [tail, *(np.frombuffer(each[size:], dtype=np.float32) for each in others)]
                total = _add(vectors)
                encoded = self._encode(total, meeting)
                unsent = total - self._decode(encoded, count, meeting)
                body = encoded + _add(tails).tobytes()
                for rank in range(1, meeting.size):
                    send.raw(rank, "down", body)
        return Reduced(self._decode(body[:size], count, meeting), np.frombuffer(body[size:], dtype=np.float32), unsent)

    async def _direct(self, meeting: Round, values: Vector, tail: Vector) -> Reduced:
        rank, shares = meeting.rank, np.array_split(values, meeting.size)
        unsent = [np.zeros_like(share) for share in shares]
        others = [(rank + step) % meeting.size for step in range(1, meeting.size)]
        async with meeting.sending() as send:
            for other in others:
                encoded = self._encode(shares[other], meeting)
                unsent[other] = shares[other] - self._decode(encoded, len(shares[other]), meeting)
                send.raw(other, "part", encoded + tail.tobytes())
            size = self.codec.size(len(shares[rank]))
            received = {other: await meeting.receive_raw(other, "part") for other in others}
            parts = {other: self._decode(body[:size], len(shares[rank]), meeting) for other, body in received.items()}
            tails = {other: np.frombuffer(body[size:], dtype=np.float32) for other, body in received.items()}
            parts[rank], tails[rank] = shares[rank], tail
            total = _add([parts[other] for other in range(meeting.size)])
            encoded = self._encode(total, meeting)
            sums = {rank: self._decode(encoded, len(total), meeting)}
            unsent[rank] = total - sums[rank]
            for other in others:
                send.raw(other, "sum", encoded)
            for other in others:
                body = await meeting.receive_raw(other, "sum")
                sums[other] = self._decode(body, len(shares[other]), meeting)
        return Reduced(
            np.concatenate([sums[other] for other in range(meeting.size)]),
            _add([tails[other] for other in range(meeting.size)]),
            np.concatenate(unsent),
        )


@dataclass(frozen=True, slots=True)
class AgreedTopK(Reduction):
    """AR-Topk (Tyagi & Swany, 2023): one member's largest values say which places all of them send.

    STAR: members lead in turn.  VAR: whose largest values weigh the most, found by an all-gather of one number each.
    """

    ratio: float = 0.01
    lead: Literal["star", "var"] = "star"

    exact = False
    vias = tuple(COLLECTIVES)

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
