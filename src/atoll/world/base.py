"""World and Peer: a node's only access to time, randomness, computation and other nodes.

A node is asyncio code that gets a `World` and uses nothing else from outside.  It cannot tell whether time is
virtual and links are modelled (`atoll.world.sim.simulation`) or both are real.

Guarantees of every world:

* Messages from one node to another on one lane arrive in the order in which they were sent.  Each arrives whole and
  once, or is still on its way.
* A lost link is weather, not an error: a send waits until it can continue, however long that takes.  Bound it with
  `asyncio.timeout`.  A cancelled send is withdrawn, unless all of it has left.
* There are two lanes.  A control message never waits behind bulk messages.
"""

import abc
import asyncio
import enum
import random
from collections.abc import Callable, Coroutine, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, TypeVar

from atoll.trace import Event

__all__ = ["FRAME_BYTES", "Buffer", "Lane", "Message", "Peer", "Spawn", "World", "frame_bytes"]

T = TypeVar("T")
Buffer = bytes | bytearray | memoryview

FRAME_BYTES = 32
"""Overhead of a message besides its channel name, head and body: length, checksum, version, ids."""


class Spawn(Protocol):
    """Runs a coroutine in the background."""

    def __call__(self, work: Coroutine[Any, Any, T]) -> asyncio.Task[T]: ...


class Lane(enum.Enum):
    """How a message travels: small and urgent, or large."""

    CONTROL = "control"
    BULK = "bulk"


@dataclass(frozen=True, slots=True)
class Message:
    """A received message: a small head that says what it is, and a body."""

    sender: str
    channel: str
    head: bytes
    body: bytes | memoryview

    def __repr__(self) -> str:
        return f"Message({self.sender} → {self.channel!r}, head {len(self.head)} B, body {len(self.body)} B)"


def frame_bytes(channel: str, head: bytes, body: Buffer) -> int:
    """The size of a message in bytes, as handed to the transport."""
    return FRAME_BYTES + len(channel.encode()) + len(head) + memoryview(body).nbytes


class Peer(abc.ABC):
    """Another node, as seen from this one."""

    __slots__ = ()

    @property
    @abc.abstractmethod
    def name(self) -> str: ...

    @property
    @abc.abstractmethod
    def reachable(self) -> bool:
        """Whether messages get through, directly or relayed by a third node, as far as this node has noticed."""

    @property
    @abc.abstractmethod
    def round_trip_s(self) -> float:
        """The round-trip time over the direct link, as measured by heartbeats; infinite if unknown."""

    @abc.abstractmethod
    async def wait_until(self, *, reachable: bool) -> None:
        """Returns when this node has noticed that the peer can be reached, or that it cannot."""

    @abc.abstractmethod
    async def send(
        self,
        channel: str,
        head: bytes = b"",
        body: Buffer = b"",
        *,
        lane: Lane = Lane.BULK,
        left: Callable[[float], None] | None = None,
    ) -> None:
        """Sends a message and returns when all of it has left this node; the buffers may then be reused.

        Args:
            channel: where the receiver expects it.
            head: a few bytes that describe the body.
            body: the values.
            lane: bulk, or control messages, which do not wait behind bulk.
            left: called with the time at which all of it was on the network: for small messages, which the system
                copies, that is known only later.
        """

    @abc.abstractmethod
    async def receive(self, channel: str) -> Message:
        """The next message from this peer on a channel."""


class World(abc.ABC):
    """A node's interface to everything outside it."""

    __slots__ = ()

    @property
    @abc.abstractmethod
    def name(self) -> str:
        """This node's name."""

    @property
    @abc.abstractmethod
    def now(self) -> float:
        """Seconds since the run began."""

    @property
    @abc.abstractmethod
    def is_late(self) -> bool:
        """Whether the run began before this node did: the node joined later, or was restarted."""

    @property
    def is_founder(self) -> bool:
        """Whether the run begins with this node's state; a node that joins later receives the state."""
        return not self.is_late

    @property
    @abc.abstractmethod
    def random(self) -> random.Random:
        """This node's own random stream."""

    @abc.abstractmethod
    def save(self) -> bytes:
        """The state of this node's random streams, torch's included, and its count of bytes sent."""

    @abc.abstractmethod
    def load(self, saved: bytes) -> None:
        """Restores the state that `save` returned."""

    @property
    @abc.abstractmethod
    def peer_names(self) -> Sequence[str]:
        """Every other node, in a fixed order."""

    @abc.abstractmethod
    def peer(self, name: str) -> Peer:
        """Another node; raises `UnknownPeer` if there is no node of that name."""

    @property
    @abc.abstractmethod
    def sent_bytes(self) -> int:
        """Every byte that this node has handed to the transport."""

    @abc.abstractmethod
    async def sleep(self, seconds: float) -> None: ...

    @abc.abstractmethod
    async def compute(self, work: Callable[[], T], *, steps: float = 1.0) -> T:
        """Runs `work`, which costs the time of this many training steps.  A node computes one thing at a time."""

    @abc.abstractmethod
    async def aside(self, work: Callable[[], T]) -> T:
        """Runs `work` where computation runs, but at no declared cost: for work that is part of a step."""

    @abc.abstractmethod
    async def offload(self, work: Callable[[], T], *, values: int = 0) -> T:
        """Runs `work` on a thread beside the event loop: encoding, adding and copying of vectors, which would delay
        heartbeats.  In simulation it takes the time that the node declares.

        Args:
            work: what is to be done.
            values: how many values it goes through, if that is known.
        """

    @abc.abstractmethod
    async def receive(self, channel: str) -> Message:
        """The next message on a channel, from any peer."""

    @abc.abstractmethod
    def record(self, event: Event) -> None:
        """Adds an event to the run's trace."""
