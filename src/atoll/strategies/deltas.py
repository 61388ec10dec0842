"""Each node sends its changes to all others asynchronously, without rounds and without a server.

A model is x₀ + η Σ changes / N, over all nodes' changes that have arrived.  A node keeps unsent changes for each peer
and adds them to its next message.  So a slow link gets fewer and larger changes, and none is lost or counted twice.
Changes that a codec leaves out stay unsent; the node's own model includes them meanwhile.

With bounded staleness (SSP; Ho et al., 2013) a node that is more than `bound` steps ahead of the slowest waits, for two
seconds at most.  A node does not wait for an unreachable peer.  After a wait that timed out, it also does not wait for
that peer again until it hears from it.

A node that joins is new: it asks the others for their initial model and for the sum of their changes, which is twice
the size of the model from each.  They answer at once, independently of their training.  Until then the node sends
nothing: changes that it learned on its own model, or on the old initial model, would spoil theirs.  If nobody answers
for half a minute, it begins a run of its own, with its own origin.  When runs of two origins meet, the younger one
ends: its nodes are new again in the older one, and the founders' run is the oldest.

A node that continues from a checkpoint asks too, and takes the changes that it does not have.  For that it stores the
sum of each peer's changes that its model includes, which is one model size for each peer.
"""

import asyncio
import dataclasses
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from functools import partial

import torch

from atoll.codecs import Codec
from atoll.collectives import Body, Lengths
from atoll.state import Saved, note, read_note, section, under
from atoll.strategies.changes import (
    ACKNOWLEDGEMENT,
    ASK,
    BASE,
    CHANGE,
    EVERYTHING,
    FOUNDERS,
    HEAD,
    ChangeWire,
    Origin,
    Told,
    as_arrays,
    read_head,
    with_change,
)
from atoll.strategies.parts.merge import average_buffers
from atoll.strategies.parts.part import Part
from atoll.strategies.parts.when import When
from atoll.strategies.replica import Quantity, Replica
from atoll.strategies.talk import Spawn, Strategy, Talk, record_push
from atoll.trace import ContributionRefused, Waited
from atoll.vectors import Vector, added, all_finite, length, minus, of_array, times, zeros
from atoll.world.base import Buffer, Lane, Message
from atoll.world.hearing import hear

__all__ = ["DeltaTalk", "Deltas"]

WAIT_S = 2.0
ANSWER_S = 30.0
"""A peer that has not acknowledged for this long has restarted, and never will."""


@dataclass(frozen=True, kw_only=True)
class Deltas(Strategy):
    """Asynchronous changes."""

    when: Part[When]
    """When to send changes."""
    bound: int
    """How many steps a node may be ahead of the slowest; 0: no limit."""
    rate: float = 1.0
    """The factor η for changes, on top of one node's share 1/N."""
    codec: Codec | None = None
    """Encodes changes; default: uncompressed."""

    def start(self, replica: Replica) -> "DeltaTalk":
        return DeltaTalk(replica, self)


class DeltaTalk(Talk):
    """One node's part in bounded staleness.

    Args:
        replica: its model.
        parts: the strategy.
    """

    _spawn: Spawn

    def __init__(self, replica: Replica, parts: Deltas) -> None:
        self._replica = replica
        self._when = parts.when()
        self._bound = parts.bound
        self._share = parts.rate / len(replica.members)
        self._wire = ChangeWire(replica, parts.codec)
        peers = [name for name in replica.members if name != replica.world.name]
        self._clocks = dict.fromkeys(peers, 0)
        self._began = dict.fromkeys(peers, 0)
        """The step of this node at which each peer began: a new one is not far behind."""
        self._changed = zeros(0)
        """All of the node's own changes."""
        self._told: dict[str, Vector] = {}
        """The part of them sent to each peer; peers that were sent the same share a vector."""
        self._busy_since_s: dict[str, float | None] = dict.fromkeys(peers)
        self._theirs: dict[str, Vector] = {}
        """The sum of the changes that each peer has sent."""
        self._arrived: list[tuple[str, Told]] = []
        """Changes that have arrived and are not in the model yet."""
        self._lengths = Lengths()
        """The usual norm of peers' changes per step."""
        self._heard = asyncio.Event()
        self._silent: set[str] = set()
        """Peers for which a wait timed out, and that have sent nothing since."""
        self._before = zeros(0)
        self._base = zeros(0)
        """The initial model of the run."""
        self._base_is_there = False
        self._origin = FOUNDERS
        self._asked = dict.fromkeys(peers, 0)
        """How often this node has asked each peer for everything."""
        self._answered: set[str] = set()
        """Peers that have sent this node all their changes, or that are new too.  Messages from others were meant for
        the node that had this place before.
        """
        self._new_too: set[str] = set()
        self._is_new = False
        """Whether the node does not know the initial model of the run."""
        self._new_until_s = 0.0
        self._told_at_step = 0
        self._reading = asyncio.Lock()
        """Messages are read beside the event loop, and take effect in the order in which they came."""

    def prepare(self) -> None:
        self._before = self._base = self._replica.read(Quantity.PARAMETERS)
        self._changed = torch.zeros_like(self._before)
        self._wire.look()

    @property
    def memory_bytes(self) -> int:
        return 4 * self._replica.size * (3 + 2 * len(self._clocks))

    def start(self, spawn: Spawn) -> None:
        self._spawn = spawn
        self._told = dict.fromkeys(self._clocks, self._changed)
        world = self._replica.world
        spawn(hear(world, CHANGE, self._in_order(self._take)))
        spawn(hear(world, ACKNOWLEDGEMENT, self._acknowledged))
        spawn(hear(world, EVERYTHING, self._in_order(self._begins_anew)))
        spawn(hear(world, BASE, self._in_order(self._take_base)))
        if world.is_founder:
            self._answered.update(self._clocks)
        else:
            self._be_new()

    def _in_order(self, take: Callable[[Message], Awaitable[None]]) -> Callable[[Message], Awaitable[None]]:
        async def taken(message: Message) -> None:
            async with self._reading:
                await take(message)

        return taken

    async def after_step(self) -> bool:
        replica = self._replica
        if self._is_new:
            return await self._begin_from_base()
        change = await self._changed_by_own_step()
        if change is None:
            return False
        if self._bound:
            await self._gate()
        arrived, self._arrived = self._arrived, []
        self._before = await replica.touch(lambda: self._merge(change, arrived))
        if await self._when(replica, replica.steps - self._told_at_step, 0):
            self._told_at_step = replica.steps
            await self._tell()
        return bool(arrived)

    async def _changed_by_own_step(self) -> Vector | None:
        """What the node's last step counts for; `None` if the node has become new meanwhile."""
        change, changed = await self._replica.touch(self._own_change)
        if self._is_new:
            return None
        self._changed = changed
        return change

    def _own_change(self) -> tuple[Vector, Vector]:
        """What the node's last step counts for, and the sum of all such changes."""
        change = minus(self._replica.read(Quantity.PARAMETERS), self._before).mul_(self._share)
        if not all_finite(change):
            world = self._replica.world
            world.record(ContributionRefused(at=world.now, node=world.name, name="change", why="not finite"))
            change.zero_()
        return change, added([self._changed, change])

    def _merge(self, change: Vector, arrived: list[tuple[str, Told]]) -> Vector:
        """Adds the node's own change and those that have arrived; returns the model."""
        values = added([self._before, change, *(told.change for _, told in arrived)])
        for _, told in arrived:
            self._replica.include(told.work)
        self._replica.write(Quantity.PARAMETERS, values)
        if arrived:
            average_buffers(self._replica, [told.buffers for _, told in arrived])
        self._wire.look()
        return values

    async def _begin_from_base(self) -> bool:
        """A new node continues from the run's initial model plus all changes, once all reachable peers have answered.
        After a timeout it uses the changes that have arrived, or its own model if none have.
        """
        world = self._replica.world
        is_told = all(name in self._answered or not world.peer(name).reachable for name in self._clocks)
        if not (self._base_is_there and is_told) and world.now < self._new_until_s:
            return False
        self._is_new = False
        if not self._base_is_there:
            self._before = self._base = await self._replica.touch(lambda: self._replica.read(Quantity.PARAMETERS))
            self._origin = world.now, self._replica.rank
            self._answered.update(self._clocks)
            return False
        arrived, self._arrived = self._arrived, []
        self._changed = torch.zeros_like(self._base)
        self._told = dict.fromkeys(self._clocks, self._changed)
        self._before = await self._replica.touch(lambda: self._take_over(arrived))
        return True

    def _take_over(self, arrived: list[tuple[str, Told]]) -> Vector:
        values = added([self._base, *(told.change for _, told in arrived)])
        for _, told in arrived:
            self._replica.include(told.work)
            self._replica.write(Quantity.BUFFERS, told.buffers)
        self._replica.write(Quantity.PARAMETERS, values)
        self._wire.look()
        return values

    def _be_new(self) -> None:
        """Asks all peers for the run's initial model and for all their changes."""
        self._is_new, self._new_until_s = True, self._replica.world.now + ANSWER_S
        self._base_is_there = False
        self._changed = torch.zeros_like(self._base)
        self._told = dict.fromkeys(self._clocks, self._changed)
        for left in (self._arrived, self._answered, self._new_too, self._theirs):
            left.clear()
        for name in self._clocks:
            self._ask(name)

    def _ask(self, name: str) -> None:
        self._answered.discard(name)
        self._asked[name] += 1
        self._spawn(self._send_ask(name))

    async def _send_ask(self, name: str) -> None:
        head = ASK.pack(self._asked[name], self._is_new)
        await self._replica.world.peer(name).send(EVERYTHING, head, lane=Lane.CONTROL)

    def save(self) -> Saved:
        known = note({"clocks": self._clocks, "began": self._began, "origin": self._origin})
        theirs = dict(self._theirs)
        for name, told in self._arrived:  # the model does not include these yet
            theirs[name] = theirs[name] - told.change
        vectors = {**under("told", as_arrays(self._told)), **under("theirs", as_arrays(theirs))}
        return {**as_arrays({"changed": self._changed, "base": self._base}), **vectors, "known": known}

    def load(self, saved: Saved) -> None:
        device = self._replica.device
        self._changed, self._base = of_array(saved["changed"], device), of_array(saved["base"], device)
        self._is_new = False
        self._before = self._replica.read(Quantity.PARAMETERS)
        self._wire.look()
        told, known = section("told", saved), read_note(saved["known"])
        self._origin = known["origin"][0], known["origin"][1]
        self._theirs = {name: of_array(values, device) for name, values in section("theirs", saved).items()}
        for name in self._clocks:  # a peer that is not saved is sent everything
            self._told[name] = of_array(told[name], device) if name in told else torch.zeros_like(self._changed)
            self._clocks[name] = known["clocks"].get(name, 0)
            self._began[name] = known["began"].get(name, 0)

    async def _gate(self) -> None:
        """Waits for the slowest peer, with a timeout."""
        world, since = self._replica.world, self._replica.world.now
        try:
            async with asyncio.timeout(WAIT_S):
                while self._behind():
                    self._heard.clear()
                    await self._heard.wait()
        except TimeoutError:
            self._silent.update(self._behind())
        if world.now > since:
            world.record(Waited(at=world.now, node=world.name, since=since, why="the slowest"))

    def _behind(self) -> list[str]:
        """The peers to wait for."""
        world, least = self._replica.world, self._replica.steps - self._bound
        return [
            name
            for name, clock in self._clocks.items()
            if clock < least and name not in self._silent and world.peer(name).reachable
        ]

    async def _tell(self) -> None:
        """Sends changes to every peer that has acknowledged the last message, or has taken too long."""
        written: dict[int, tuple[Vector, Buffer]] = {}
        changed, replica, now = self._changed, self._replica, self._replica.world.now
        for name, since_s in self._busy_since_s.items():
            if since_s is None or now - since_s > ANSWER_S:
                told = self._told[name]
                if id(told) not in written:
                    write = partial(self._wire.write, told, changed)
                    written[id(told)] = await replica.world.offload(write, values=replica.size)
                if self._told[name] is told:  # else it was sent everything meanwhile
                    self._told[name], body = written[id(told)]
                    self._busy_since_s[name] = now
                    self._spawn(self._send(name, replica.steps, body))

    async def _send(self, name: str, step: int, body: Buffer) -> None:
        world = self._replica.world
        head = HEAD.pack(step, world.now, *self._origin)
        await world.peer(name).send(CHANGE, head, body)

    async def _take(self, message: Message) -> None:
        world, sender = self._replica.world, message.sender
        step, sent_s, origin = read_head(message.head)
        self._spawn(world.peer(sender).send(ACKNOWLEDGEMENT, lane=Lane.CONTROL))
        if not self._counts(sender, origin):
            return
        known = self._theirs.get(sender)
        read, theirs, long = await world.offload(
            lambda: self._read(message.body, step, known), values=self._replica.size
        )
        since = max(1, self._began[sender] + step - self._clocks[sender])
        scale = self._lengths.scale(sender, long / since)
        self._theirs[sender] = theirs
        if scale != 1:
            why = f"{sender}: a change that is absurdly long"
            world.record(ContributionRefused(at=world.now, node=world.name, name="change", why=why))
            read = dataclasses.replace(read, change=times(read.change, scale))
        self._clocks[sender] = max(self._clocks[sender], self._began[sender] + step)
        self._silent.discard(sender)
        self._arrived.append((sender, read))
        self._heard.set()
        record_push(world, f"change of {sender}", sent_s)

    def _read(self, body: Body, step: int, known: Vector | None) -> tuple[Told, Vector, float]:
        """A peer's message, the sum of its changes with this one, and the norm of this one."""
        read = self._wire.read(body, step)
        return read, with_change(known, read.change), length(read.change)

    def _counts(self, sender: str, origin: Origin) -> bool:
        """Whether a change belongs to this node's run, and its sender has sent all earlier changes."""
        if self._is_new and sender in self._new_too:  # the sender is no longer new
            self._new_too.discard(sender)
            self._ask(sender)
        elif not self._is_new and origin < self._origin:
            self._be_new()
        return sender in self._answered and origin == self._origin

    async def _begins_anew(self, message: Message) -> None:
        number, is_new = ASK.unpack(message.head)
        if is_new:  # its earlier changes are from before its restart, and stay
            self._theirs.pop(message.sender, None)
        if number == 1 and message.sender not in self._answered:  # it may not have been running when it was asked
            self._ask(message.sender)
        replica, base, changed, step = self._replica, self._base, self._changed, self._replica.steps
        head = message.head + HEAD.pack(step, replica.world.now, *self._origin)
        body: Buffer = b""  # a new node has nothing to send
        if not self._is_new:
            body = await replica.world.offload(lambda: self._wire.write_base(base, changed), values=replica.size)
        # What was told meanwhile does not count: whoever has no base drops it.
        self._told[message.sender] = changed
        self._busy_since_s[message.sender] = None
        self._began[message.sender] = self._clocks[message.sender] = step
        self._spawn(replica.world.peer(message.sender).send(BASE, head, body))

    async def _take_base(self, message: Message) -> None:
        """Takes the run's initial model and all the sender's changes; the message is empty if the sender is new too."""
        sender = message.sender
        number, _ = ASK.unpack(message.head[: ASK.size])
        if number != self._asked[sender]:
            return
        self._answered.add(sender)
        if not message.body:
            self._new_too.add(sender)
            return
        step, _, origin = read_head(message.head[ASK.size :])
        read = partial(self._wire.read_base, message.body)
        base, told = await self._replica.world.offload(read, values=self._replica.size)
        if self._is_new and (not self._base_is_there or origin < self._origin):
            self._base, self._base_is_there, self._origin = base, True, origin
            self._arrived.clear()
            self._theirs.clear()
        if origin == self._origin:
            known = self._theirs.get(sender)
            missing = told if known is None else dataclasses.replace(told, change=minus(told.change, known))
            self._theirs[sender] = with_change(known, missing.change)
            self._arrived.append((sender, missing))
        self._clocks[sender] = max(self._clocks[sender], self._began[sender] + step)

    def _acknowledged(self, message: Message) -> None:
        self._busy_since_s[message.sender] = None
