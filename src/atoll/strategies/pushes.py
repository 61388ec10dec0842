"""Gossip: from time to time a node pushes its model to a few peers and merges the models that it receives.

A push is acknowledged.  Each peer has at most one push in flight, so a slow link gets as much as it can carry and no
queue builds up.  The time to the acknowledgement is all that a node measures of its links.  A push that has not left
after `patience_s` is cancelled, and with push-sum its mass returns: nothing is lost or counted twice.

With a codec a push holds the difference from the copy that the peer is known to have, and only that is merged: parts
that the codec left out are in the next difference.  Both sides number pushes; a peer that missed one reports it, and
gets the whole model next.

A node that joins is new: it adopts the first whole model that it receives, and pushes nothing before that, or before
its wait for a model times out.  Only new nodes use the push of a new node: among them, the model with most work
continues.
"""

import asyncio
import struct
from dataclasses import dataclass, replace
from functools import partial

import numpy as np
import torch

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
from atoll.vectors import Vector, added, all_finite, as_array, length, minus, of_bytes, sealed
from atoll.world.base import Lane, Message
from atoll.world.hearing import hear

__all__ = ["PushTalk", "Pushes"]

PUSH, ACKNOWLEDGEMENT = "push", "push ack"
_HEAD = struct.Struct("<IIdd?")  # number, the one that it builds on (0: none), seconds when taken, weight, if new
MOST_MASS = 16.0
"""Limit for the mass of a push, in nodes per member: each node that restarts brings its own mass."""
_ACK = struct.Struct("<I?")  # number, whether it could be read


class _Image:
    """One node's copy of another's model, as both of them know it."""

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
    """Encodes models; default: uncompressed."""

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
        parts: the strategy.
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
        """Each peer's copy of this node's model; `None`: unknown."""
        self._here: dict[str, _Image] = {}
        """This node's copy of each peer's model."""
        self._offered: dict[str, _Image] = {}
        """A peer's copy once it acknowledges."""
        self._under_way: dict[str, float] = {}
        """The weights of pushes that are not acknowledged."""
        self._lengths = Lengths()
        """The usual distance of peers' models."""
        self._is_new = False
        """Whether the node never had the run's model."""
        self._silent_until_s = 0.0
        """Until when a new node waits for a model."""
        self._spawn: Spawn | None = None

    @property
    def mass(self) -> float:
        """The mass that push-sum conserves: the node's own, plus arrivals."""
        return self._own.mass + sum(arrival.weight for arrival in self._arrivals)

    @property
    def mass_under_way(self) -> float:
        """The mass of pushes that are not acknowledged; some of them may have arrived."""
        return sum(self._under_way.values())

    def prepare(self) -> None:
        self._initial = self._replica.read(Quantity.PARAMETERS)
        self._buffer_bytes = self._replica.read(Quantity.BUFFERS).nbytes

    @property
    def memory_bytes(self) -> int:
        images = 2 * len(self._peers) if self._codec else 0
        return 4 * self._replica.size * (2 + images + (LEAST_PAST if self._merge.remembers else 0))

    def start(self, spawn: Spawn) -> None:
        self._spawn = spawn
        world = self._replica.world
        self._is_new = not world.is_founder
        if self._is_new:
            self._silent_until_s = world.now + self._patience_s
        if world.is_late:
            self._there = dict.fromkeys(self._peers)  # peers have at most a copy from before the restart
        spawn(hear(world, PUSH, self._take))
        spawn(hear(world, ACKNOWLEDGEMENT, self._acknowledged))

    async def after_step(self) -> bool:
        replica = self._replica
        arrivals, self._arrivals = self._arrivals, []
        merged = bool(arrivals) and await replica.touch(lambda: self._take_in(arrivals))
        if self._merge.remembers:
            await replica.touch(self._remember)
        if replica.world.now >= self._silent_until_s and await self._when(
            replica, replica.steps - self._pushed_at_step, self._number
        ):
            self._pushed_at_step = replica.steps
            await self._push()
        return merged

    def _remember(self) -> None:
        self._own.remember(self._replica.world.now, lambda: self._replica.read(Quantity.PARAMETERS))

    def _take_in(self, arrivals: list[Arrival]) -> bool:
        """Merges arrivals; returns whether the model has changed."""
        replica = self._replica
        if self._is_new:
            whole = next((arrival for arrival in arrivals if arrival.told is None), None)
            if whole:  # else it is a change of a model that this node does not have
                self._adopt(whole)
            return whole is not None
        if not all_finite(replica.read(Quantity.PARAMETERS)):  # its own model cannot be merged
            replica.write(Quantity.PARAMETERS, arrivals[-1].values)
            return True
        if not self._merge.conserves_mass:  # else refused mass would be missing in all means forever
            arrivals = self._judged(arrivals)
        if arrivals:
            self._merge(replica, arrivals, self._own)
            average_buffers(replica, [arrival.buffers for arrival in arrivals])
        return bool(arrivals)

    def _judged(self, arrivals: list[Arrival]) -> list[Arrival]:
        """Arrivals without models that are much farther away than usual; after some refusals, a peer's model is
        accepted at a reduced distance.
        """
        found, world = [], self._replica.world
        for arrival in arrivals:
            then = self._own.at(arrival.sent_s)
            own = self._replica.read(Quantity.PARAMETERS) if then is None else then
            differs = minus(arrival.values, own)
            scale = self._lengths.scale(arrival.sender, length(differs))
            if scale == 1:
                found.append(arrival)
                continue
            why = f"{arrival.sender}: a model that is absurdly far away"
            world.record(ContributionRefused(at=world.now, node=world.name, name="push", why=why))
            if scale > 0:
                found.append(replace(arrival, values=differs.mul_(scale).add_(own)))
        return found

    def _adopt(self, arrival: Arrival) -> None:
        """Continues from another node's model, and forgets this node's own past models."""
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
        self._there = dict.fromkeys(self._peers)  # it is unknown which copies they have
        self._is_new, self._silent_until_s = False, 0.0

    async def _push(self) -> None:
        assert self._spawn is not None
        world = self._replica.world
        free = [name for name in self._peers if self._is_free(name)]
        turn = Turn(world.name, self._replica.members, self._turns)
        chosen = self._whom(turn, free, self._fanout, self._known, world.random)
        self._turns += 1
        # A queued model is old when it arrives: an unreachable peer gets the current model once it is reachable.
        targets = [name for name in chosen if world.peer(name).reachable]
        if not targets:
            return
        model, buffers = Quantity.PARAMETERS, Quantity.BUFFERS
        values, more = await self._replica.touch(lambda: (self._replica.read(model), self._replica.read(buffers)))
        if not await world.offload(lambda: all_finite(values), values=len(values)):
            world.record(ContributionRefused(at=world.now, node=world.name, name="push", why="not finite"))
            return
        weight = 1.0
        if self._merge.conserves_mass:
            weight = self._own.mass / (len(targets) + 1)
            self._own.mass = weight
        arrival = Arrival(world.name, world.now, values, self._replica.work.copy(), more, weight)
        for name in targets:
            self._number += 1
            self._known.setdefault(name, Acquaintance()).since = world.now
            self._under_way[name] = weight
            self._spawn(self._send(name, self._number, arrival))

    def _is_free(self, name: str) -> bool:
        """Whether a peer has acknowledged the last push, or is so late that it must have restarted and never will."""
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
            known.acknowledged(self._patience_s)  # the least time that it would have taken
            self._under_way.pop(name, None)
            if self._merge.conserves_mass:
                self._arrivals.append(arrival)

    def _write(self, name: str, number: int, arrival: Arrival) -> tuple[int, Body]:
        """The number of the push that this push builds on, and the bytes of its message."""
        base, encoded = self._encode(name, number, arrival.values)
        return base, sealed(encoded, as_array(arrival.buffers), arrival.work.view(np.float32))

    def _encode(self, name: str, number: int, values: Vector) -> tuple[int, torch.Tensor]:
        if self._codec is None:
            return 0, values
        assert self._initial is not None
        there = self._there.get(name, _Image(self._initial))
        if there is None:  # send the whole model; base == number marks that
            self._offered[name] = _Image(values, number)
            return number, values
        encoded = self._codec.encode(minus(values, there.values), number)
        decoded = self._codec.decode(encoded, len(values), number)
        self._offered[name] = _Image(added([there.values, decoded]), number)
        return there.number, encoded

    async def _take(self, message: Message) -> None:
        assert self._spawn is not None
        arrival = await self._replica.world.offload(lambda: self._read(message), values=self._replica.size)
        if arrival and self._is_of_use(arrival, sender_is_new=_HEAD.unpack(message.head)[-1]):
            self._arrivals.append(arrival)
        (number,) = struct.unpack_from("<I", message.head)
        answer = _ACK.pack(number, arrival is not None)
        self._spawn(self._replica.world.peer(message.sender).send(ACKNOWLEDGEMENT, answer, lane=Lane.CONTROL))

    def _is_of_use(self, arrival: Arrival, *, sender_is_new: bool) -> bool:
        """Whether to use an arrival: only a new node with less work uses the model of a new node."""
        if not sender_is_new:
            return True
        own, theirs = int(self._replica.work.sum()), int(arrival.work.sum())
        return self._is_new and (theirs, arrival.sender) > (own, self._replica.world.name)

    def _read(self, message: Message) -> Arrival | None:
        number, base, sent_s, weight, _ = _HEAD.unpack(message.head)
        work_bytes, buffer_bytes = self._replica.work.nbytes, self._buffer_bytes
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
        buffers = of_bytes(message.body[size : size + buffer_bytes], device=self._replica.device)
        work = np.frombuffer(message.body[size + buffer_bytes :], dtype=np.int64)
        if not all_finite(buffers) or (work < 0).any() or (work > MOST_WORK).any():
            raise ValueError("buffers that are not finite, or work that nobody can have done")
        record_push(self._replica.world, f"push of {message.sender}", sent_s)
        return Arrival(message.sender, sent_s, values, work, buffers, weight, told)

    def _read_values(
        self, sender: str, number: int, base: int, body: Body
    ) -> tuple[Vector, torch.Tensor | None] | None:
        """A peer's model, and its newly sent values; `None` if it builds on a push that this node does not have."""
        device = self._replica.device
        if self._codec is None:
            return of_bytes(body, device=device), None
        assert self._initial is not None
        told = None
        if base == number:
            values = of_bytes(body, device=device)
        else:
            here = self._here.get(sender, _Image(self._initial))
            if here.number != base:
                return None
            change = self._codec.decode(of_bytes(body, torch.uint8, device), len(here.values), number)
            values = added([here.values, change])
            told = change != 0 if self._codec.sparse else None
        self._here[sender] = _Image(values, number)
        return values, told

    def _acknowledged(self, message: Message) -> None:
        number, read = _ACK.unpack(message.head)
        offered = self._offered.get(message.sender)
        if offered and offered.number == number:
            self._there[message.sender] = offered if read else None
        known = self._known.get(message.sender)
        if known is not None and known.since is not None:  # else the acknowledged push was before this node's restart
            known.acknowledged(self._replica.world.now - known.since)
            known.since = None
            self._under_way.pop(message.sender, None)
