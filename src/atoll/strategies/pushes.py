"""Gossip: now and then a node pushes its model to a few peers and merges what others have pushed to it.

A push is acknowledged.  To one peer at most one push is under way, so a slow link gets as much as it can carry and no
queue builds up; how long the acknowledgement took is all that a node learns about its links.  A push that has not left
after `patience_s` is taken back, and with push-sum its mass with it: nothing is lost or counted twice.

With a codec a push tells what has changed since what the peer is known to have of this node, and only that is merged:
what was left out is part of the next push by itself.  Both sides count; a peer that missed one says so, and gets the
whole model next.

A node that joins is new: it takes the first whole model that it is pushed for its own, and pushes nothing before that,
or before it has waited for one in vain.  What a new node pushes is of use only to others that are new: of them the one
with most work goes on.
"""

import asyncio
import struct
from dataclasses import dataclass, replace
from functools import partial

import numpy as np
import torch
from numpy.typing import NDArray

from atoll.codecs import Codec
from atoll.codecs.transform import Cosine, LowRank
from atoll.collectives import Body, Lengths
from atoll.errors import StrategyError
from atoll.state import Saved
from atoll.strategies.parts.merge import LEAST_PAST, Arrival, Drift, Merge, Own, average_buffers
from atoll.strategies.parts.part import Part
from atoll.strategies.parts.when import When
from atoll.strategies.parts.whom import Acquaintance, Turn, Whom
from atoll.strategies.replica import MOST_WORK, Quantity, Replica
from atoll.strategies.talk import Spawn, Strategy, Talk, record_push
from atoll.trace import ContributionRefused
from atoll.vectors import Vector, all_finite, length
from atoll.world.base import Lane, Message
from atoll.world.hearing import hear

__all__ = ["PushTalk", "Pushes"]

PUSH, ACKNOWLEDGEMENT = "push", "push ack"
_HEAD = struct.Struct("<IIdd?")  # number, the one that it builds on (0: none), seconds when taken, weight, if new
MOST_MASS = 16.0
"""No push carries more than so many nodes' mass a member: each that begins anew brings its own."""
_ACK = struct.Struct("<I?")  # number, whether it could be read


class _Image:
    """What one node has of another's model, as both of them know it."""

    def __init__(self, values: Vector, number: int = 0) -> None:
        self.values = values
        self.number = number


@dataclass(frozen=True, kw_only=True)
class Pushes(Strategy):
    """Gossip."""

    when: Part[When]
    """When to push."""
    whom: Whom
    """How to choose peers."""
    fanout: int
    """How many peers to push to; half of them if 0."""
    merge: Merge
    """What to do with arrivals."""
    patience_s: float
    """How long a push may wait to leave."""
    codec: Codec | None = None
    """How models are written; whole if left out."""

    def __post_init__(self) -> None:
        if self.codec is not None and not isinstance(self.merge, Drift):
            raise StrategyError("a push in a codec is not a whole model, which this merge needs: expected merge=drift")
        if isinstance(self.codec, (Cosine, LowRank)):
            raise StrategyError("a push must tell some values as they are, and this codec tells mixtures of them")

    def start(self, replica: Replica) -> "PushTalk":
        return PushTalk(replica, self)


class PushTalk(Talk):
    """One node's part in gossip.

    Args:
        replica: its model.
        parts: what gossip is.
    """

    def __init__(self, replica: Replica, parts: Pushes) -> None:
        self._replica = replica
        self._when = parts.when()
        self._whom = parts.whom
        self._peers = [name for name in replica.members if name != replica.world.name]
        self._fanout = parts.fanout or max(1, len(self._peers) // 2)
        self._merge = parts.merge
        self._patience_s = parts.patience_s
        self._own = Own(parts.merge.remembers, replica.size)
        self._turns = 0
        self._arrivals: list[Arrival] = []
        self._known: dict[str, Acquaintance] = {}
        self._pushed_at_step = 0
        self._number = 0
        self._codec = parts.codec
        self._initial: Vector | None = None
        self._there: dict[str, _Image | None] = {}
        """What each peer has of this node; `None`: who knows."""
        self._here: dict[str, _Image] = {}
        """What this node has of each peer."""
        self._offered: dict[str, _Image] = {}
        """What a peer will have when it acknowledges."""
        self._under_way: dict[str, float] = {}
        """The weights of pushes that are not acknowledged."""
        self._lengths = Lengths()
        """How far away peers' models usually are."""
        self._is_new = False
        """Whether it never had the run's model."""
        self._silent_until_s = 0.0
        """Until when a new node waits for a model."""
        self._spawn: Spawn | None = None

    @property
    def mass(self) -> float:
        """What push-sum conserves: the node's own, and what has arrived."""
        return self._own.mass + sum(arrival.weight for arrival in self._arrivals)

    @property
    def mass_under_way(self) -> float:
        """What has left and is not acknowledged; some of it may have arrived."""
        return sum(self._under_way.values())

    def prepare(self) -> None:
        self._initial = self._replica.read(Quantity.PARAMETERS)

    @property
    def copies(self) -> int:
        images = 2 * len(self._peers) if self._codec else 0
        return 2 + images + (LEAST_PAST if self._merge.remembers else 0)

    def start(self, spawn: Spawn) -> None:
        self._spawn = spawn
        world = self._replica.world
        self._is_new = not world.is_founder
        if self._is_new:
            self._silent_until_s = world.now + self._patience_s
        if world.is_late:
            self._there = dict.fromkeys(self._peers)  # they know what it was before, if anything
        spawn(hear(world, PUSH, self._take))
        spawn(hear(world, ACKNOWLEDGEMENT, self._acknowledged))

    async def after_step(self) -> bool:
        replica, offload = self._replica, partial(self._replica.world.offload, values=self._replica.size)
        arrivals, self._arrivals = self._arrivals, []
        merged = bool(arrivals) and await offload(lambda: self._take_in(arrivals))
        if self._merge.remembers:
            await offload(self._remember)
        if replica.world.now >= self._silent_until_s and self._when(
            replica, replica.steps - self._pushed_at_step, self._number
        ):
            self._pushed_at_step = replica.steps
            await self._push()
        return merged

    def _remember(self) -> None:
        self._own.remember(self._replica.world.now, lambda: self._replica.read(Quantity.PARAMETERS))

    def _take_in(self, arrivals: list[Arrival]) -> bool:
        """Merges what has arrived; returns whether the model has changed."""
        replica = self._replica
        if self._is_new:
            whole = next((arrival for arrival in arrivals if arrival.told is None), None)
            if whole:  # else it is what has changed in a model that this node does not have
                self._adopt(whole)
            return whole is not None
        if not all_finite(replica.read(Quantity.PARAMETERS)):  # there is nothing of its own to merge with
            replica.write(Quantity.PARAMETERS, arrivals[-1].values)
            return True
        if not self._merge.conserves_mass:  # else what is refused would be missing in everybody's mean for good
            arrivals = self._judged(arrivals)
        if arrivals:
            self._merge(replica, arrivals, self._own)
            average_buffers(replica, [arrival.buffers for arrival in arrivals])
        return bool(arrivals)

    def _judged(self, arrivals: list[Arrival]) -> list[Arrival]:
        """Without models that are absurdly far away, by what is usual; one that has been for long is taken as if it
        were nearer.
        """
        found, world = [], self._replica.world
        for arrival in arrivals:
            then = self._own.at(arrival.sent_s)
            own = self._replica.read(Quantity.PARAMETERS) if then is None else then
            differs = arrival.values - own
            scale = self._lengths.scale(arrival.sender, length(differs))
            if scale == 1:
                found.append(arrival)
                continue
            why = f"{arrival.sender}: a model that is absurdly far away"
            world.record(ContributionRefused(at=world.now, node=world.name, name="push", why=why))
            if scale > 0:
                found.append(replace(arrival, values=own + differs * np.float32(scale)))
        return found

    def _adopt(self, arrival: Arrival) -> None:
        """Goes on from the model of another; what this node's own was like is forgotten."""
        self._is_new, self._silent_until_s = False, 0.0
        self._own.forget()
        self._there = dict.fromkeys(self._peers)
        self._replica.write(Quantity.PARAMETERS, arrival.values)
        self._replica.write(Quantity.BUFFERS, arrival.buffers)
        self._replica.take_over(arrival.work, {}, self._replica.global_step)

    def save(self) -> Saved:
        return {"mass": np.array([self._own.mass])}

    def load(self, saved: Saved) -> None:
        self._own.mass = float(saved["mass"][0])
        self._there = dict.fromkeys(self._peers)  # who knows what they have
        self._is_new, self._silent_until_s = False, 0.0

    async def _push(self) -> None:
        assert self._spawn is not None
        world = self._replica.world
        free = [name for name in self._peers if self._is_free(name)]
        turn = Turn(world.name, self._replica.members, self._turns)
        chosen = self._whom(turn, free, self._fanout, self._known, world.random)
        self._turns += 1
        # What waits for a link is old when it arrives: who cannot be reached gets the model of when it can.
        targets = [name for name in chosen if world.peer(name).reachable]
        if not targets:
            return
        offload = partial(world.offload, values=self._replica.size)
        values = await offload(lambda: self._replica.read(Quantity.PARAMETERS))
        if not await offload(lambda: all_finite(values)):
            world.record(ContributionRefused(at=world.now, node=world.name, name="push", why="not finite"))
            return
        weight = 1.0
        if self._merge.conserves_mass:
            weight = self._own.mass / (len(targets) + 1)
            self._own.mass = weight
        buffers = self._replica.read(Quantity.BUFFERS)
        arrival = Arrival(world.name, world.now, values, self._replica.work.copy(), buffers, weight)
        for name in targets:
            self._number += 1
            self._known.setdefault(name, Acquaintance()).since = world.now
            self._under_way[name] = weight
            self._spawn(self._send(name, self._number, arrival))

    def _is_free(self, name: str) -> bool:
        """Whether a peer has acknowledged the last push; who has not for so long has begun anew, and never will."""
        known = self._known.get(name)
        if known is None or known.since is None:
            return True
        return self._replica.world.now - known.since > 2 * self._patience_s

    async def _send(self, name: str, number: int, arrival: Arrival) -> None:
        offload = partial(self._replica.world.offload, values=self._replica.size)
        base, body = await offload(lambda: self._write(name, number, arrival))
        head = _HEAD.pack(number, base, arrival.sent_s, arrival.weight, self._is_new)
        try:
            async with asyncio.timeout(self._patience_s):
                await self._replica.world.peer(name).send(PUSH, head, body)
        except TimeoutError:
            known = self._known[name]
            known.since = None
            known.acknowledged(self._patience_s)  # it may have taken for ever
            self._under_way.pop(name, None)
            if self._merge.conserves_mass:
                self._arrivals.append(arrival)

    def _write(self, name: str, number: int, arrival: Arrival) -> tuple[int, bytes]:
        """The push that a push to a peer builds on, and the bytes of its message."""
        base, encoded = self._encode(name, number, arrival.values)
        return base, b"".join([encoded, arrival.buffers.tobytes(), arrival.work.tobytes()])

    def _encode(self, name: str, number: int, values: Vector) -> tuple[int, bytes | memoryview]:
        if self._codec is None:
            return 0, values.data.cast("B")
        assert self._initial is not None
        there = self._there.get(name, _Image(self._initial))
        if there is None:  # begin again with everything, in the number that means so
            self._offered[name] = _Image(values, number)
            return number, values.data.cast("B")
        encoded = self._codec.encode(torch.from_numpy(values - there.values), number)
        decoded = self._codec.decode(encoded, len(values), number).numpy()
        self._offered[name] = _Image(there.values + decoded, number)
        return there.number, encoded.numpy().tobytes()

    async def _take(self, message: Message) -> None:
        assert self._spawn is not None
        arrival = await self._replica.world.offload(lambda: self._read(message), values=self._replica.size)
        if arrival and self._is_of_use(arrival, sender_is_new=_HEAD.unpack(message.head)[-1]):
            self._arrivals.append(arrival)
        (number,) = struct.unpack_from("<I", message.head)
        answer = _ACK.pack(number, arrival is not None)
        self._spawn(self._replica.world.peer(message.sender).send(ACKNOWLEDGEMENT, answer, lane=Lane.CONTROL))

    def _is_of_use(self, arrival: Arrival, *, sender_is_new: bool) -> bool:
        """What a new node has is of no use to others, but to one that is new too and has less."""
        if not sender_is_new:
            return True
        own, theirs = int(self._replica.work.sum()), int(arrival.work.sum())
        return self._is_new and (theirs, arrival.sender) > (own, self._replica.world.name)

    def _read(self, message: Message) -> Arrival | None:
        number, base, sent_s, weight, _ = _HEAD.unpack(message.head)
        work_bytes, buffer_bytes = self._replica.work.nbytes, self._replica.read(Quantity.BUFFERS).nbytes
        size = len(message.body) - work_bytes - buffer_bytes
        if size < 0 or not 0 < weight <= MOST_MASS * len(self._replica.members):
            raise ValueError(f"{len(message.body)} bytes with a weight of {weight} are no model")
        read = self._read_values(message.sender, number, base, message.body[:size])
        if read is None:
            return None
        values, told = read
        assert self._initial is not None
        if len(values) != len(self._initial) or not all_finite(values):
            raise ValueError(f"{len(values)} values are no model of {len(self._initial)}, or not finite")
        buffers = np.frombuffer(message.body[size : size + buffer_bytes], dtype=np.float32)
        work = np.frombuffer(message.body[size + buffer_bytes :], dtype=np.int64)
        if not all_finite(buffers) or (work < 0).any() or (work > MOST_WORK).any():
            raise ValueError("buffers that are not finite, or work that nobody can have done")
        record_push(self._replica.world, f"push of {message.sender}", sent_s)
        return Arrival(message.sender, sent_s, values, work, buffers, weight, told)

    def _read_values(
        self, sender: str, number: int, base: int, body: Body
    ) -> tuple[Vector, NDArray[np.bool_] | None] | None:
        """A peer's model, and what of it is new; `None` if it builds on a push that this node does not have."""
        if self._codec is None:
            return np.frombuffer(body, dtype=np.float32), None
        assert self._initial is not None
        told = None
        if base == number:
            values = np.frombuffer(body, dtype=np.float32)
        else:
            here = self._here.get(sender, _Image(self._initial))
            if here.number != base:
                return None
            encoded = torch.frombuffer(bytearray(body), dtype=torch.uint8)
            change = self._codec.decode(encoded, len(here.values), number).numpy()
            values = here.values + change
            told = change != 0 if self._codec.sparse else None
        self._here[sender] = _Image(values, number)
        return values, told

    def _acknowledged(self, message: Message) -> None:
        number, read = _ACK.unpack(message.head)
        offered = self._offered.get(message.sender)
        if offered and offered.number == number:
            self._there[message.sender] = offered if read else None
        known = self._known.get(message.sender)
        if known is not None and known.since is not None:  # else it is for what this node was before it began anew
            known.acknowledged(self._replica.world.now - known.since)
            known.since = None
            self._under_way.pop(message.sender, None)
