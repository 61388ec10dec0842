"""A peer in the simulated world: what one node sends another, over their link or through a third node.

While two nodes' own link is noticed to be away, what they have to tell each other goes through a third one that reaches
both.  A node knows whom its peers reach, as they would tell with their heartbeats.  A relay takes a message in whole
and sends it on: both legs cost what they cost, and the relay's bytes are its own.  Where the network has other paths
between two nodes it uses them itself, and nobody relays.
"""

import asyncio
from collections.abc import Callable
from typing import TYPE_CHECKING

from atoll.trace import Transferred
from atoll.world.base import Buffer, Lane, Message, Peer, frame_bytes
from atoll.world.connection import Connection, Transfer

if TYPE_CHECKING:
    from atoll.world.sim import SimWorld

__all__ = ["Order", "SimPeer"]


class Order:
    """Messages from one node to another on one lane, each once and in the order in which they were sent: one that took
    the longer way may be overtaken, and is waited for.
    """

    __slots__ = ("_came", "_next", "_numbers")

    def __init__(self) -> None:
        self._numbers = 0
        self._next = 0
        self._came: dict[int, Message | None] = {}

    def number(self) -> int:
        """A number for the next message."""
        self._numbers += 1
        return self._numbers - 1

    def arrived(self, number: int, message: Message | None) -> list[Message]:
        """What can be delivered now that this message has come, or will not come (`None`)."""
        if number < self._next or number in self._came:
            return []
        self._came[number] = message
        ready = []
        while self._next in self._came:
            found = self._came.pop(self._next)
            self._next += 1
            if found is not None:
                ready.append(found)
        return ready


class SimPeer(Peer):
    """A peer in the simulated world."""

    __slots__ = ("_bulk", "_control", "_in_the_air", "_name", "_world")

    def __init__(self, world: "SimWorld", name: str) -> None:
        self._world = world
        self._name = name
        self._bulk: Connection | None = None
        self._control: Connection | None = None
        self._in_the_air: dict[_Flight, None] = {}

    @property
    def name(self) -> str:
        return self._name

    @property
    def reachable(self) -> bool:
        return self._world.simulation.reach(self._world.name, self._name).reachable

    async def wait_until(self, *, reachable: bool) -> None:
        await self._world.simulation.reach(self._world.name, self._name).wait_until(reachable=reachable)

    async def receive(self, channel: str) -> Message:
        return await self._world.receive_from(self._name, channel)

    async def send(self, channel: str, head: bytes = b"", body: Buffer = b"", *, lane: Lane = Lane.BULK) -> None:
        world, simulation = self._world, self._world.simulation
        receiver = simulation.worlds[self._name]
        # The sender may use its buffer again as soon as this returns, so what travels is a copy; `bytes` cannot change.
        content = body if isinstance(body, bytes) else bytes(body)
        message = Message(world.name, channel, head, content)
        if simulation.physics.relays and simulation.links.routes.own_link(world.name, self._name):
            await self._carry(message, lane, receiver.order(world.name, lane).number())
            return
        connection, transfer = self.offer(message, lane, lambda: receiver.deliver(message))
        try:
            await transfer.sent
        except asyncio.CancelledError:
            simulation.links.take_back(connection, transfer)
            raise

    def offer(self, message: Message, lane: Lane, arrived: Callable[[], None]) -> tuple[Connection, Transfer]:
        """Begins to send a message from this node to the peer, and no further."""
        world, simulation, name = self._world, self._world.simulation, self._name
        size = frame_bytes(message.channel, message.head, message.body)

        def deliver(transfer: Transfer) -> None:
            simulation.record(
                Transferred(
                    at=simulation.now,
                    sender=world.name,
                    receiver=name,
                    channel=message.channel,
                    bytes=transfer.bytes,
                    since=transfer.offered_s,
                    began=transfer.began_s,
                )
            )
            arrived()

        sent = simulation.loop.create_future()
        transfer = Transfer(size, simulation.physics.wire_bytes(size), sent, deliver, simulation.now)
        world.hand_over(size)
        connection = self._connection(lane)
        simulation.links.offer(connection, transfer)
        return connection, transfer

    def _connection(self, lane: Lane) -> Connection:
        if lane is Lane.BULK:
            if self._bulk is None:
                self._bulk = Connection(self._world.name, self._name)
            return self._bulk
        if self._control is None:
            self._control = Connection(self._world.name, self._name)
        return self._control

    # With relays ---

    async def _carry(self, message: Message, lane: Lane, number: int) -> None:
        """Sends a message over the own link, or through a third node while that link is noticed to be away.

        Args:
            message: what to send, perhaps for another node.
            lane: how.
            number: its place in the order from its sender to the peer.
        """
        world, simulation = self._world, self._world.simulation
        flight = _Flight(message, lane, number)
        to = self._name
        connection, transfer = self.offer(message, lane, self._arrival(to, flight))
        try:
            while not transfer.sent.done():
                if not simulation.reach(world.name, to).reachable:
                    way = simulation.way(world.name, self._name, message.sender)
                    if way is not None and way != to:
                        simulation.links.take_back(connection, transfer)
                        to = way
                        connection, transfer = world.peer(to).offer(message, lane, self._arrival(to, flight))
                        continue
                await asyncio.wait({transfer.sent, simulation.reach_changed()}, return_when=asyncio.FIRST_COMPLETED)
        except asyncio.CancelledError:
            simulation.links.take_back(connection, transfer)
            if not transfer.sent.done():
                self._deliver(flight, void=True)
            raise
        if to == self._name and not flight.arrived:
            self._in_the_air[flight] = None

    def _arrival(self, to: str, flight: "_Flight") -> Callable[[], None]:
        """What happens when a message comes to where this node sent it."""
        if to == self._name:
            return lambda: self._deliver(flight)
        return lambda: self._world.simulation.worlds[to].peer(self._name).hand_on(flight)

    def _deliver(self, flight: "_Flight", *, void: bool = False) -> None:
        flight.arrived = True
        self._in_the_air.pop(flight, None)
        receiver = self._world.simulation.worlds[self._name]
        order = receiver.order(flight.message.sender, flight.lane)
        for ready in order.arrived(flight.number, None if void else flight.message):
            receiver.deliver(ready)

    def hand_on(self, flight: "_Flight") -> None:
        """Sends on what another node has for the peer."""
        carrying = self._carry(flight.message, flight.lane, flight.number)
        self._world.simulation.relay(carrying, f"{self._world.name} relaying")

    def lost(self) -> None:
        """The link to the peer is noticed to be away: what was in the air when it broke is sent again, another way."""
        for flight in list(self._in_the_air):
            way = self._world.simulation.way(self._world.name, self._name, flight.message.sender)
            if way is not None and way != self._name:
                self._world.peer(way).offer(flight.message, flight.lane, self._arrival(way, flight))


class _Flight:
    """A message on one leg of its way."""

    __slots__ = ("arrived", "lane", "message", "number")

    def __init__(self, message: Message, lane: Lane, number: int) -> None:
        self.message = message
        self.lane = lane
        self.number = number
        self.arrived = False
