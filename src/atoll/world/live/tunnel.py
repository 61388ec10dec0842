"""Tunnels carry frames through a third node, while two nodes have no direct connection.

A tunnel carries the same frames as a connection, so a session needs no special case.  The third node forwards frames as
they arrive, lane by lane, and stores none.
"""

import asyncio
import struct
from collections.abc import Awaitable, Callable, Sequence

from atoll.errors import FrameError
from atoll.world.base import Buffer, Lane
from atoll.world.live.carrier import Carrier, Place
from atoll.world.live.frames import HEAD_BYTES, Head, Kind, head_of, parse_head

__all__ = ["Envelope", "Tunnel", "parse_envelope"]

_NAMES = struct.Struct("!BB")
MOST_WAITING = 1024
"""The limit of unread frames of a tunnel; windows are bounded, so an honest peer does not exceed it."""


class Envelope:
    """A frame to relay, with its sender and its receiver."""

    __slots__ = ("frame", "receiver", "sender")

    def __init__(self, sender: str, receiver: str, frame: memoryview) -> None:
        self.sender = sender
        self.receiver = receiver
        self.frame = frame


def pack_names(sender: str, receiver: str) -> bytes:
    one, other = sender.encode(), receiver.encode()
    return _NAMES.pack(len(one), len(other)) + one + other


def parse_envelope(payload: memoryview) -> Envelope:
    if len(payload) < _NAMES.size:
        raise FrameError("an envelope without names")
    one, other = _NAMES.unpack(payload[: _NAMES.size])
    start = _NAMES.size + one + other
    if len(payload) < start + HEAD_BYTES:
        raise FrameError("an envelope without a frame")
    try:
        names = bytes(payload[_NAMES.size : start])
        return Envelope(names[:one].decode(), names[one:].decode(), payload[start:])
    except UnicodeDecodeError:
        raise FrameError("an envelope with names that are not texts in UTF-8") from None


class Tunnel(Carrier):
    """A route through a third node."""

    def __init__(
        self,
        lane: Lane,
        *,
        dialled: bool,
        via: str,
        me: str,
        peer: str,
        number: int,
        send: Callable[[Lane, int, Sequence[Buffer]], Awaitable[None]],
    ) -> None:
        super().__init__(lane, dialled=dialled)
        self._via = via
        self._names = pack_names(me, peer)
        self.peer = peer
        self.number = number
        self._send = send
        self._posting: set[asyncio.Task[None]] = set()
        self._came: asyncio.Queue[memoryview | None] = asyncio.Queue()

    @property
    def via(self) -> str | None:
        return self._via

    async def send(self, kind: Kind, number: int = 0, offset: int = 0, payload: Sequence[Buffer] = ()) -> None:
        if self.closed:
            raise ConnectionResetError("the way is lost")
        head = head_of(kind, number, offset, payload, encrypted=True)  # each hop verifies its own frames
        await self._send(self.lane, self.number, [self._names, head, *payload])

    def post(self, kind: Kind, number: int = 0, offset: int = 0, payload: bytes = b"") -> None:
        task = asyncio.create_task(self._send_posted(kind, number, offset, payload), name=f"{kind.name} to {self.peer}")
        self._posting.add(task)
        task.add_done_callback(self._posting.discard)

    async def _send_posted(self, kind: Kind, number: int, offset: int, payload: bytes) -> None:
        try:
            await self.send(kind, number, offset, [payload])
        except OSError:
            self.close()

    def arrived(self, frame: memoryview) -> None:
        """Queues a frame that has arrived."""
        if self._came.qsize() >= MOST_WAITING:
            self.close()
        elif not self.closed:
            self._came.put_nowait(frame)

    async def receive(self, place: Place | None = None) -> tuple[Head, memoryview]:
        frame = await self._came.get()
        if frame is None:
            raise ConnectionResetError("the way is lost")
        head = parse_head(frame[:HEAD_BYTES])
        payload = frame[HEAD_BYTES:]
        if len(payload) != head.size:
            raise FrameError(f"a frame of {head.size} bytes in an envelope of {len(payload)}")
        head.check([payload], encrypted=True)
        room = place and place(head)
        if room:
            room[:] = payload
            return head, room
        return head, payload

    def close(self) -> None:
        if not self.closed:
            self.closed = True
            self._came.put_nowait(None)
            for task in self._posting:
                if task is not asyncio.current_task():
                    task.cancel()
