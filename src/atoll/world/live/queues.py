"""Outboxes and inboxes deliver the messages of one lane from one node to another: complete, exactly once and in order,
even if connections are lost.

Messages are numbered.  A position is a pair: the number of a message, and 0 before its OPEN frame, else 1 + the number
of body bytes received; so positions compare in stream order.  The receiver reports its position with every
acknowledgement and on every new connection, and the sender resumes from there.
"""

import asyncio
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field

from atoll.errors import FrameError
from atoll.world.base import Buffer, Message
from atoll.world.live.frames import Head, Kind, Opening, parse_opening, room

__all__ = ["Chunk", "Inbox", "Outbox", "Outgoing", "Position"]

Position = tuple[int, int]
COPIED_BYTES = 1 << 16
"""Bodies up to this size are copied, so `send` need not wait for their acknowledgement."""


class Outgoing:
    """A message in an outbox."""

    __slots__ = ("arrived", "body", "kept", "left", "number", "opening", "void")

    def __init__(self, opening: bytes, body: Buffer, left: "asyncio.Future[None]") -> None:
        self.opening = opening
        view = memoryview(body).cast("B")
        self.kept = isinstance(body, bytes) or len(view) <= COPIED_BYTES
        """Whether the body cannot change; else the sender must not change it before all of it has arrived."""
        self.body = view if isinstance(body, bytes) or not self.kept else memoryview(bytes(view))
        self.number = 0
        self.left = left
        self.arrived: Callable[[], None] | None = None
        """Called when all of it is acknowledged."""
        self.void = False


@dataclass(frozen=True, slots=True)
class Chunk:
    """The next frame of an outbox."""

    kind: Kind
    number: int
    offset: int
    payload: list[Buffer]
    ends: Position
    """The receiver's position after this chunk."""
    last: bool

    @property
    def size(self) -> int:
        return sum(memoryview(part).nbytes for part in self.payload)


class Outbox:
    """The messages from one node to another on one lane that are not acknowledged."""

    def __init__(self, wake: Callable[[], None]) -> None:
        self._wake = wake
        self._messages: deque[Outgoing] = deque()
        self._numbers = 0
        self._cursor: Position = (0, 0)
        """The position to send next."""
        self._sent: Position = (0, 0)
        """The highest position that was ever sent."""

    def __len__(self) -> int:
        return len(self._messages)

    def put(self, message: Outgoing) -> None:
        message.number = self._numbers
        self._numbers += 1
        self._messages.append(message)
        self._wake()

    def take_back(self, message: Outgoing) -> None:
        """Cancels a message, unless all of it was sent."""
        if message not in self._messages:
            return
        if self._cursor[0] > message.number:
            if not message.kept:  # all of it was sent, and it must not change until it has arrived
                message.body, message.kept = memoryview(bytes(message.body)), True
            return
        message.void = True
        message.body = memoryview(b"")
        self._wake()

    @property
    def waiting(self) -> bool:
        """Whether there is something to send."""
        return bool(self._messages) and self._cursor[0] < self._numbers

    def next(self, most: int) -> Chunk | None:
        """Returns the next chunk, with at most `most` bytes of a body."""
        number, done = self._cursor
        if not self._messages or number >= self._numbers:
            return None
        message = self._messages[number - self._messages[0].number]
        if message.void:
            self._advance(ends := (number + 1, 0))
            return Chunk(Kind.VOID, number, 0, [], ends, last=True)
        offset = max(0, done - 1)
        piece = message.body[offset : offset + most]
        last = offset + len(piece) == len(message.body)
        self._advance(ends := (number + 1, 0) if last else (number, 1 + offset + len(piece)))
        payload: list[Buffer] = [piece] if done else [message.opening, piece]
        return Chunk(Kind.PART if done else Kind.OPEN, number, offset, payload, ends, last=last)

    def _advance(self, position: Position) -> None:
        self._cursor = position
        self._sent = max(self._sent, position)

    def left(self, chunk: Chunk) -> None:
        """The operating system has accepted a chunk."""
        if chunk.last:
            message = self._find(chunk.number)
            if message and message.kept and not message.left.done():
                message.left.set_result(None)

    def _find(self, number: int) -> Outgoing | None:
        place = number - self._messages[0].number if self._messages else -1
        return self._messages[place] if 0 <= place < len(self._messages) else None

    def acknowledge(self, position: Position) -> None:
        """Handles the position that the receiver acknowledged."""
        if position > self._sent:
            raise FrameError(f"{position} is acknowledged, and only {self._sent} was sent")
        self._cursor = max(self._cursor, position)
        while self._messages and self._messages[0].number < position[0]:
            message = self._messages.popleft()
            if message.arrived is not None and not message.void:
                message.arrived()
            if not message.left.done():
                message.left.set_result(None)

    def resume(self, position: Position) -> None:
        """Resumes from the receiver's position."""
        first = self._messages[0].number if self._messages else self._numbers
        position = max(position, (first, 0))  # later acknowledgements may have overtaken it
        if position > max(self._sent, (first, 0)):
            raise FrameError(f"to go on from {position} was asked for, and only {self._sent} was sent")
        self._sent = max(self._sent, position)
        self.acknowledge(position)
        self._cursor = position
        self._wake()

    def restart(self) -> None:
        """The receiver has restarted: all waiting messages are sent from the beginning."""
        for number, message in enumerate(self._messages):
            message.number = number
        self._numbers = len(self._messages)
        self._cursor = self._sent = (0, 0)
        self._wake()


@dataclass(slots=True)
class _Incoming:
    opening: Opening
    body: memoryview
    since: float


@dataclass(slots=True)
class Inbox:
    """The receiving end of a lane."""

    sender: str
    position: Position = (0, 0)
    taken_bytes: int = 0
    """Bytes that were received."""
    twice_bytes: int = 0
    """Bytes that were received more than once."""
    _message: _Incoming | None = field(default=None)

    @property
    def is_under_way(self) -> bool:
        """Whether a part of a message is here."""
        return self._message is not None

    def place(self, head: Head) -> memoryview | None:
        """Returns the buffer for the payload of a frame; `None`: a new buffer is used."""
        message = self._message
        if head.kind is Kind.PART and message and (head.number, head.offset + 1) == self.position:
            if head.offset + head.size > len(message.body):
                raise FrameError(f"a message of {len(message.body)} bytes that brings {head.offset + head.size}")
            return message.body[head.offset : head.offset + head.size]
        return None

    def take(self, head: Head, payload: memoryview, now: float) -> tuple[Message, float] | None:
        """Accepts a frame.  If it completes a message, returns the message and the time of its first frame.  Duplicates
        are ignored; a gap raises `FrameError`.
        """
        number, done = self.position
        self.taken_bytes += len(payload)
        if head.number < number:
            self.twice_bytes += len(payload)
            return None
        if head.number > number:
            raise FrameError(f"message {head.number} comes where {number} is expected")
        if head.kind is Kind.VOID:
            self.position, self._message = (number + 1, 0), None
            return None
        start = head.offset
        if head.kind is Kind.OPEN:
            opening, payload = parse_opening(payload)
            start = 0
        if head.kind is Kind.OPEN and not done:
            piece = payload
            # A complete body is used without a copy; otherwise a buffer for all of it is allocated.
            body = piece if len(piece) == opening.body_bytes else room(opening.body_bytes)
            if len(piece) < opening.body_bytes:
                body[: len(piece)] = piece
            self._message = _Incoming(opening, body, now)
            end = len(piece)
        else:
            message = self._message
            end = start + len(payload)
            if message is None or start + 1 > done or end > len(message.body):
                raise FrameError(f"bytes {start} to {end} of message {number} come where {done - 1} is expected")
            self.twice_bytes += min(end, done - 1) - start
            if end + 1 <= done:
                return None
            if start + 1 < done or payload.obj is not message.body.obj:
                message.body[start:end] = payload
        assert self._message is not None
        found = self._message
        if end < len(found.body):
            self.position = (number, 1 + end)
            return None
        self.position, self._message = (number + 1, 0), None
        return Message(self.sender, found.opening.channel, found.opening.head, found.body.toreadonly()), found.since

    def restart(self) -> None:
        """The sender has restarted."""
        self.position, self._message = (0, 0), None
