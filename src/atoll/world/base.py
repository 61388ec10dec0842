"""World and Peer: a node's only door to time, randomness, computing and other nodes.

A node is asyncio code that is given a `World` and uses nothing else of the outside.  It cannot tell whether time is
virtual and links are modelled (`atoll.world.sim.simulation`) or both are real.

What holds in every world:

* Messages from one node to another on one lane arrive in the order in which they were sent, each whole, each once, or
  not yet.
* A lost link is weather: a send waits until it can go on, however long that takes.  Bound it with `asyncio.timeout`.  A
  send that is cancelled is taken back, unless all of it has left.
* There are two lanes.  What is sent as control never waits behind bulk.
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
"""What a message costs beside its channel's name, head and body: length, checksum, version, ids."""


class Spawn(Protocol):
    """Runs something in the background."""

    def __call__(self, work: Coroutine[Any, Any, T]) -> asyncio.Task[T]: ...


class Lane(enum.Enum):
    """How a message travels: small and urgent, or large."""

    CONTROL = "control"
    BULK = "bulk"


@dataclass(frozen=True, slots=True)
class Message:
    """What arrives: a small head that says what it is, and a body."""

    sender: str
    channel: str
    head: bytes
    body: bytes | memoryview

    def __repr__(self) -> str:
        return f"Message({self.sender} → {self.channel!r}, head {len(self.head)} B, body {len(self.body)} B)"


def frame_bytes(channel: str, head: bytes, body: Buffer) -> int:
    """All bytes of a message: what is handed to the transport."""
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
        """Whether messages get through, over the own link or through a third node, as far as this node has noticed."""

    @property
    @abc.abstractmethod
    def round_trip_s(self) -> float:
        """How long a word there and back takes over the own link, as heartbeats find it; infinite if unknown."""

    @abc.abstractmethod
    async def wait_until(self, *, reachable: bool) -> None:
        """Returns when this node has noticed that the peer can be reached, or that it cannot."""

    @abc.abstractmethod
    async def send(self, channel: str, head: bytes = b"", body: Buffer = b"", *, lane: Lane = Lane.BULK) -> None:
        """Sends a message and returns when all of it has left this node; the buffers may then be used again."""

    @abc.abstractmethod
    async def receive(self, channel: str) -> Message:
        """The next message of this peer on a channel."""


class World(abc.ABC):
    """What one node has of the outside."""

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
        """Whether the run had begun before this node did: it is new, or begins anew."""

    @property
    def is_founder(self) -> bool:
        """Whether the run begins with what this node holds; who joins later is handed it."""
        return not self.is_late

    @property
    @abc.abstractmethod
    def random(self) -> random.Random:
        """This node's own random stream."""

    @abc.abstractmethod
    def save(self) -> bytes:
        """Where this node's random streams are, torch's included, and what it has sent."""

    @abc.abstractmethod
    def load(self, saved: bytes) -> None:
        """Goes on from what `save` gave."""

    @property
    @abc.abstractmethod
    def peer_names(self) -> Sequence[str]:
        """Every other node, in a fixed order."""

    @abc.abstractmethod
    def peer(self, name: str) -> Peer:
        """Another node; an `UnknownPeer` error if there is none of that name."""

    @property
    @abc.abstractmethod
    def sent_bytes(self) -> int:
        """Every byte that this node has handed to the transport."""

    @abc.abstractmethod
    async def sleep(self, seconds: float) -> None: ...

    @abc.abstractmethod
    async def compute(self, work: Callable[[], T], *, steps: float = 1.0) -> T:
        """Does `work`, which is worth this many training steps of time.  A node computes one thing at a time."""

    @abc.abstractmethod
    async def aside(self, work: Callable[[], T]) -> T:
        """Does `work` where computing is done, but at no declared cost: what belongs to a step."""

    @abc.abstractmethod
    async def offload(self, work: Callable[[], T]) -> T:
        """Does `work` on a thread beside the event loop: encoding, adding and copying of vectors, which would hold up
        heartbeats.  In simulation it is done at once, and takes no time.
        """

    @abc.abstractmethod
    async def receive(self, channel: str) -> Message:
        """The next message on a channel, whoever sent it."""

    @abc.abstractmethod
    def record(self, event: Event) -> None:
        """Adds an event to the run's trace."""
