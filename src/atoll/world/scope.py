"""A world within a world: messages sent in it reach only nodes that are in it too.

A node takes part in several exchanges at once (its pipeline, one for each range of parameters that it
holds), and each is written as if it were the only one.
"""

import random
from collections.abc import Callable, Sequence
from typing import TypeVar

from atoll.trace import Event
from atoll.world.base import Buffer, Lane, Message, Peer, World

__all__ = ["Scoped"]

T = TypeVar("T")


class Scoped(World):
    """The same node, peers and time; channels of its own.

    Args:
        world: the node's world.
        scope: the name of the exchange, the same on all nodes that take part.
        begins: whether all nodes begin it together, even if this node joined the run later.
        alone: whether each node begins it alone, and the others then admit it.
    """

    __slots__ = ("_alone", "_begins", "_scope", "_world")

    def __init__(self, world: World, scope: str, *, begins: bool = False, alone: bool = False) -> None:
        self._world = world
        self._scope = scope
        self._begins = begins
        self._alone = alone

    @property
    def name(self) -> str:
        return self._world.name

    @property
    def now(self) -> float:
        return self._world.now

    @property
    def is_late(self) -> bool:
        return self._alone or (self._world.is_late and not self._begins)

    @property
    def is_founder(self) -> bool:
        return self._begins or self._world.is_founder

    @property
    def random(self) -> random.Random:
        return self._world.random

    def save(self) -> bytes:
        return self._world.save()

    def load(self, saved: bytes) -> None:
        self._world.load(saved)

    @property
    def peer_names(self) -> Sequence[str]:
        return self._world.peer_names

    def peer(self, name: str) -> Peer:
        return _ScopedPeer(self._world.peer(name), self._scope)

    @property
    def sent_bytes(self) -> int:
        return self._world.sent_bytes

    async def sleep(self, seconds: float) -> None:
        await self._world.sleep(seconds)

    async def compute(self, work: Callable[[], T], *, steps: float = 1.0) -> T:
        return await self._world.compute(work, steps=steps)

    async def aside(self, work: Callable[[], T]) -> T:
        return await self._world.aside(work)

    async def offload(self, work: Callable[[], T], *, values: int = 0) -> T:
        return await self._world.offload(work, values=values)

    async def receive(self, channel: str) -> Message:
        return await self._world.receive(f"{self._scope}/{channel}")

    def record(self, event: Event) -> None:
        self._world.record(event)


class _ScopedPeer(Peer):
    __slots__ = ("_peer", "_scope")

    def __init__(self, peer: Peer, scope: str) -> None:
        self._peer = peer
        self._scope = scope

    @property
    def name(self) -> str:
        return self._peer.name

    @property
    def reachable(self) -> bool:
        return self._peer.reachable

    @property
    def round_trip_s(self) -> float:
        return self._peer.round_trip_s

    async def wait_until(self, *, reachable: bool) -> None:
        await self._peer.wait_until(reachable=reachable)

    async def send(
        self,
        channel: str,
        head: bytes = b"",
        body: Buffer = b"",
        *,
        lane: Lane = Lane.BULK,
        left: Callable[[float], None] | None = None,
    ) -> None:
        await self._peer.send(f"{self._scope}/{channel}", head, body, lane=lane, left=left)

    async def receive(self, channel: str) -> Message:
        return await self._peer.receive(f"{self._scope}/{channel}")
