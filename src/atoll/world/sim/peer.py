"""A peer in the simulated world: messages from one node to another, over their link or through a third node.

While two nodes have noticed that their own link is down, their messages go through a third node that reaches both.  A
node knows which nodes its peers reach, as heartbeats would tell it.  A relay receives a message whole and forwards it:
both legs cost time, and the forwarded bytes count as the relay's.  A message that has begun on the own link stays there
too: if the link comes back first, it continues where it stopped.  Where the network has other paths between two nodes
it uses them itself, and no node relays.
"""

import asyncio
from collections.abc import Callable, Coroutine, Iterator, Mapping
from contextlib import AbstractContextManager
from typing import Any, Protocol

from atoll.trace import Event, MessageRefused, Transferred
from atoll.world.base import Buffer, Lane, Message, Peer, frame_bytes
from atoll.world.sim.connection import Connection, Transfer
from atoll.world.sim.links import Links
from atoll.world.sim.loop import VirtualLoop
from atoll.world.sim.physics import Physics
from atoll.world.sim.reach import Reach

__all__ = ["Flight", "Order", "SimPeer", "SimulationView"]


class Order:
    """Delivers messages from one node to another on one lane, each once and in the order in which they were sent: a
    message may overtake one on a longer route, and waits for it.
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
        """The messages that can be delivered now that this one has arrived, or never will (`None`)."""
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


class Door(Protocol):
    """The part of a node's world that a peer uses."""

    @property
    def name(self) -> str: ...

    @property
    def simulation(self) -> "SimulationView": ...

    def peer(self, name: str) -> "SimPeer": ...

    def order(self, sender: str, lane: Lane) -> "Order": ...

    def deliver(self, message: Message) -> None: ...

    def hand_over(self, size: int) -> None: ...

    async def receive_from(self, sender: str | None, channel: str) -> Message: ...


class SimulationView(Protocol):
    """The part of the simulation that nodes use."""

    seed: int
    loop: VirtualLoop
    links: Links
    physics: Physics
    node_names: tuple[str, ...]
    is_unruly: bool
    aloft: "dict[tuple[SimPeer, Flight], tuple[str, Transfer] | None]"

    @property
    def now(self) -> float: ...

    @property
    def worlds(self) -> Mapping[str, Door]: ...

    def record(self, event: Event) -> None: ...

    def relay(self, carrying: Coroutine[Any, Any, None], name: str) -> None: ...

    def fates(self, sender: str, receiver: str) -> Iterator[tuple[str, float]]: ...

    def reach(self, node: str, peer: str) -> Reach: ...

    def reach_changed(self) -> "asyncio.Future[None]": ...

    def waiting_for_reach(self) -> AbstractContextManager[None]: ...

    def relays(self, node: str, peer: str) -> bool: ...

    def way(self, node: str, peer: str, origin: str) -> str | None: ...

    def length_s(self, node: str, peer: str) -> float: ...


class SimPeer(Peer):
    """A peer in the simulated world."""

    __slots__ = ("_bulk", "_control", "_name", "_world")

    def __init__(self, world: Door, name: str) -> None:
        self._world = world
        self._name = name
        self._bulk: Connection | None = None
        self._control: Connection | None = None

    @property
    def name(self) -> str:
        return self._name

    @property
    def reachable(self) -> bool:
        simulation, node = self._world.simulation, self._world.name
        if simulation.reach(node, self._name).reachable:
            return True
        return simulation.relays(node, self._name) and simulation.way(node, self._name, node) is not None

    @property
    def round_trip_s(self) -> float:
        return self._world.simulation.length_s(self._world.name, self._name)

    async def wait_until(self, *, reachable: bool) -> None:
        simulation, node = self._world.simulation, self._world.name
        if not simulation.relays(node, self._name):
            await simulation.reach(node, self._name).wait_until(reachable=reachable)
            return
        with simulation.waiting_for_reach():
            while self.reachable != reachable:
                await asyncio.wait([simulation.reach_changed()])  # this future is shared: it must not be cancelled

    async def receive(self, channel: str) -> Message:
        return await self._world.receive_from(self._name, channel)

    async def send(
        self,
        channel: str,
        head: bytes = b"",
        body: Buffer = b"",
        *,
        lane: Lane = Lane.BULK,
        left: Callable[[float], None] | None = None,
    ) -> None:
        world, simulation = self._world, self._world.simulation
        receiver = simulation.worlds[self._name]
        # The sender may reuse its buffer as soon as this returns, so a copy is sent; `bytes` cannot change.
        content = body if isinstance(body, bytes) else bytes(body)
        message = Message(world.name, channel, head, content)
        if simulation.relays(world.name, self._name) or simulation.is_unruly:
            await self._carry(Flight(message, lane, receiver.order(world.name, lane).number()))
        else:
            connection, transfer = self.offer(message, lane, lambda: receiver.deliver(message))
            try:
                await transfer.sent
            except asyncio.CancelledError:
                simulation.links.take_back(connection, transfer)
                raise
        if left is not None:
            left(simulation.now)

    def offer(self, message: Message, lane: Lane, arrived: Callable[[], None]) -> tuple[Connection, Transfer]:
        """Begins to send a message from this node to the peer, without relays."""
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
            self._land(message, lane, arrived)

        sent = simulation.loop.create_future()
        transfer = Transfer(size, simulation.physics.wire_bytes(size), sent, deliver, simulation.now)
        world.hand_over(size)
        connection = self._connection(lane)
        simulation.links.offer(connection, transfer)
        return connection, transfer

    def _land(self, message: Message, lane: Lane, arrived: Callable[[], None]) -> None:
        """Delivers a message that has arrived at the peer, with the message faults that apply."""
        simulation = self._world.simulation
        for kind, seconds in simulation.fates(self._world.name, self._name):
            if kind == "corrupt":  # its checksum is wrong: it is discarded and sent again
                refused = MessageRefused(
                    at=simulation.now, node=self._name, sender=self._world.name, channel=message.channel, why="checksum"
                )
                simulation.record(refused)
                self.offer(message, lane, arrived)
                return
            simulation.loop.at(simulation.now + seconds, arrived)
            if kind == "delay":
                return
        arrived()

    def _connection(self, lane: Lane) -> Connection:
        if lane is Lane.BULK:
            if self._bulk is None:
                self._bulk = Connection(self._world.name, self._name)
            return self._bulk
        if self._control is None:
            self._control = Connection(self._world.name, self._name)
        return self._control

    # With relays ---

    async def _carry(self, flight: "Flight") -> None:
        """Sends a message over the own link, and through a third node while that link is known to be down; returns
        when it was fully sent on one of them.
        """
        simulation = self._world.simulation
        relayed = simulation.relays(self._world.name, self._name)
        direct = self._leg(self._name, flight)
        around: tuple[str, Transfer] | None = None
        try:
            while not (flight.arrived or direct.sent.done() or (around and around[1].sent.done())):
                way = simulation.way(self._world.name, self._name, flight.message.sender) if relayed else None
                if way not in (None, self._name) and (around is None or not self._reaches(around[0])):
                    assert way is not None
                    if around:
                        flight.take_back(around[1], simulation.links)
                    around = way, self._leg(way, flight)
                sending = [direct.sent, *([around[1].sent] if around else [])]
                await asyncio.wait([*sending, simulation.reach_changed()], return_when=asyncio.FIRST_COMPLETED)
        except asyncio.CancelledError:
            if not flight.left:
                self._deliver(flight, void=True)
            raise
        flight.left = True
        if direct.sent.done() and not flight.arrived:
            simulation.aloft[self, flight] = None
            flight.left_by.append(self)
            if around:
                flight.take_back(around[1], simulation.links)

    def _reaches(self, name: str) -> bool:
        return self._world.simulation.reach(self._world.name, name).reachable

    def _leg(self, to: str, flight: "Flight") -> Transfer:
        """Sends a message to the peer, or to a third node that forwards it."""
        if to == self._name:
            connection, transfer = self.offer(flight.message, flight.lane, lambda: self._deliver(flight))
        else:
            third = self._world.simulation.worlds[to].peer(self._name)
            connection, transfer = self._world.peer(to).offer(
                flight.message, flight.lane, lambda: third.hand_on(flight)
            )
        flight.legs[transfer] = connection
        return transfer

    def _deliver(self, flight: "Flight", *, void: bool = False) -> None:
        """Delivers a message, or marks it as one that never arrives; copies on other routes are withdrawn."""
        simulation = self._world.simulation
        receiver = simulation.worlds[self._name]
        flight.land(simulation)
        order = receiver.order(flight.message.sender, flight.lane)
        for ready in order.arrived(flight.number, None if void else flight.message):
            receiver.deliver(ready)

    def hand_on(self, flight: "Flight") -> None:
        """Forwards another node's message to the peer."""
        if not flight.arrived:
            self._world.simulation.relay(self._carry(flight), f"{self._world.name} relaying")

    def look_after(self, flight: "Flight", around: tuple[str, Transfer] | None) -> tuple[str, Transfer] | None:
        """Called when reach has changed while a message is in flight: if its own link is known to be down, it is sent
        again on another route as soon as there is one.

        Args:
            flight: the message that was sent over the own link.
            around: the relay that it was sent to instead, if any.

        Returns:
            The relay that it is sent to instead now.
        """
        simulation = self._world.simulation
        if around and self._reaches(around[0]):
            return around
        way = simulation.way(self._world.name, self._name, flight.message.sender)
        return around if way in (None, self._name) else (way, self._leg(way, flight))


class Flight:
    """A message in flight, on all routes that it takes."""

    __slots__ = ("arrived", "lane", "left", "left_by", "legs", "message", "number")

    def __init__(self, message: Message, lane: Lane, number: int) -> None:
        self.message = message
        self.lane = lane
        self.number = number
        """Its place in the order from its sender to its receiver."""
        self.left = False
        """Whether all of it has left its sender."""
        self.arrived = False
        self.legs: dict[Transfer, Connection] = {}
        self.left_by: list[SimPeer] = []
        """The peers over whose own links it was fully sent."""

    def land(self, simulation: SimulationView) -> None:
        self.arrived = True
        for peer in self.left_by:
            simulation.aloft.pop((peer, self), None)
        for transfer in list(self.legs):
            self.take_back(transfer, simulation.links)

    def take_back(self, transfer: Transfer, links: Links) -> None:
        links.take_back(self.legs.pop(transfer), transfer)
