"""Frames are the units that nodes send over a connection.

A frame is a head of 28 bytes and a payload.  The head holds the version, the kind of frame, the length of the payload,
two numbers whose meaning depends on the kind, and a checksum.  The checksum covers the head; it covers the payload too
unless the connection is encrypted, since TLS checks it better.  A head whose length exceeds the limit of its kind is
refused before memory is allocated or more is read.  Nothing is ever unpickled.
"""

import enum
import json
import struct
import zlib
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from atoll.errors import FrameError
from atoll.world.base import Buffer

__all__ = [
    "CHUNK_BYTES",
    "HEAD_BYTES",
    "LARGEST_MESSAGE",
    "Head",
    "Kind",
    "Opening",
    "head_of",
    "parse_head",
    "parse_json",
    "parse_opening",
    "read_reason",
    "room",
]

VERSION = 1
MAGIC = b"At"
_HEAD = struct.Struct("!2sBBIQQI")
_OPENING = struct.Struct("!HIQ")
HEAD_BYTES = _HEAD.size
CHUNK_BYTES = 1 << 22
"""The most bytes of a message's body in one frame."""
LARGEST_CHANNEL = 1 << 10
SMALL_BYTES = 1 << 18
LARGEST_REASON = 200
"""The reason for a refusal is cut to this many characters."""
LARGEST_HEAD = 1 << 20
LARGEST_MESSAGE = 1 << 34
"""The most bytes that a message's body may have."""


class Kind(enum.IntEnum):
    """The kind of a frame."""

    HELLO = 1
    """The first frame of the node that dials: its name, and how much it has received."""
    WELCOME = 2
    """Accepts a HELLO."""
    REFUSE = 3
    """Rejects a connection or a JOIN, with the reason."""
    BEAT = 4
    """A heartbeat."""
    ECHO = 5
    """The answer to a heartbeat."""
    OPEN = 6
    """Starts a message: its channel, head and length, and the first part of its body."""
    PART = 7
    """The next part of the body."""
    VOID = 8
    """The rest of the message is cancelled."""
    ACK = 9
    """The receiver's position."""
    NEWS = 10
    """The nodes that the sender reaches, and the addresses of nodes."""
    RELAY = 11
    """Carries a frame for another node."""
    LOST = 12
    """Relay route closed."""
    BYE = 13
    """The sender leaves."""
    JOIN = 14
    """Asks for a seat; the sender has no name yet."""
    SEAT = 15
    """The answer to JOIN: a name, and the description of the run."""
    PROBE = 16
    """Asks for the known measurements of all links."""
    REPORT = 17
    """The answer to PROBE."""


_SPARE = 1 << 10
"""Extra bytes that a RELAY frame adds to the frame inside it."""
LARGEST = {
    Kind.HELLO: 1 << 16,
    Kind.WELCOME: 1 << 16,
    Kind.REFUSE: 1 << 12,
    Kind.BEAT: 0,
    Kind.ECHO: 0,
    Kind.OPEN: _OPENING.size + LARGEST_CHANNEL + LARGEST_HEAD + CHUNK_BYTES,
    Kind.PART: CHUNK_BYTES,
    Kind.VOID: 0,
    Kind.ACK: 1,
    Kind.NEWS: 1 << 21,
    Kind.RELAY: _OPENING.size + LARGEST_CHANNEL + LARGEST_HEAD + CHUNK_BYTES + HEAD_BYTES + _SPARE,
    Kind.LOST: 0,
    Kind.BYE: 0,
    Kind.JOIN: 1 << 12,
    Kind.SEAT: 1 << 20,
    Kind.PROBE: 1 << 12,
    Kind.REPORT: 1 << 23,
}
"""The longest payload of each kind."""


@dataclass(frozen=True, slots=True)
class Head:
    """The fixed part of a frame before its payload."""

    kind: Kind
    size: int
    number: int = 0
    offset: int = 0
    checksum: int = 0

    def check(self, payload: Sequence[Buffer], *, encrypted: bool) -> None:
        """Raises `FrameError` if the checksum does not match."""
        if _checksum(self.kind, self.size, self.number, self.offset, payload, encrypted=encrypted) != self.checksum:
            raise FrameError(f"the checksum of a frame of kind {self.kind.name} is wrong")


def head_of(kind: Kind, number: int, offset: int, payload: Sequence[Buffer], *, encrypted: bool) -> bytes:
    """Packs the head of a frame."""
    size = sum(memoryview(part).nbytes for part in payload)
    if size > LARGEST[kind]:
        raise FrameError(f"a frame of kind {kind.name} with {size} bytes: at most {LARGEST[kind]}")
    checksum = _checksum(kind, size, number, offset, payload, encrypted=encrypted)
    return _HEAD.pack(MAGIC, VERSION, kind, size, number, offset, checksum)


def _checksum(kind: Kind, size: int, number: int, offset: int, payload: Sequence[Buffer], *, encrypted: bool) -> int:
    found = zlib.crc32(_HEAD.pack(MAGIC, VERSION, kind, size, number, offset, 0))
    if not encrypted:
        for part in payload:
            found = zlib.crc32(part, found)
    return found


def parse_head(data: Buffer) -> Head:
    """Reads a head; raises `FrameError` if it is malformed."""
    if len(data) != HEAD_BYTES:
        raise FrameError(f"a head of {len(data)} bytes: expected {HEAD_BYTES}")
    magic, version, kind, size, number, offset, checksum = _HEAD.unpack(data)
    if magic != MAGIC:
        raise FrameError(f"not a frame of Atoll: it begins with {magic!r}")
    if version != VERSION:
        raise FrameError(f"a frame of version {version}: this node speaks version {VERSION}")
    try:
        known = Kind(kind)
    except ValueError:
        raise FrameError(f"a frame of kind {kind}, which there is not") from None
    if size > LARGEST[known]:
        raise FrameError(f"a frame of kind {known.name} with {size} bytes: at most {LARGEST[known]}")
    return Head(known, size, number, offset, checksum)


@dataclass(frozen=True, slots=True)
class Opening:
    """The start of a message, in its first frame."""

    channel: str
    head: bytes
    body_bytes: int

    def pack(self) -> bytes:
        channel = self.channel.encode()
        if len(channel) > LARGEST_CHANNEL or len(self.head) > LARGEST_HEAD or self.body_bytes > LARGEST_MESSAGE:
            raise FrameError(
                f"a message of {len(channel)} + {len(self.head)} + {self.body_bytes} bytes (channel, head, body): "
                f"at most {LARGEST_CHANNEL} + {LARGEST_HEAD} + {LARGEST_MESSAGE}"
            )
        return _OPENING.pack(len(channel), len(self.head), self.body_bytes) + channel + self.head


def parse_opening(payload: memoryview) -> tuple[Opening, memoryview]:
    """Reads the start of a message; returns it, and the part of the body in the same frame."""
    if len(payload) < _OPENING.size:
        raise FrameError(f"a message that opens with {len(payload)} bytes")
    channel, head, body = _OPENING.unpack(payload[: _OPENING.size])
    start = _OPENING.size + channel + head
    if channel > LARGEST_CHANNEL or head > LARGEST_HEAD or body > LARGEST_MESSAGE or start > len(payload):
        raise FrameError(f"a message of {channel} + {head} + {body} bytes in a frame of {len(payload)}")
    if len(payload) - start > body:
        raise FrameError(f"a message of {body} bytes that brings {len(payload) - start}")
    try:
        name = bytes(payload[_OPENING.size : _OPENING.size + channel]).decode()
    except UnicodeDecodeError:
        raise FrameError("a message whose channel is not a text in UTF-8") from None
    return Opening(name, bytes(payload[_OPENING.size + channel : start]), body), payload[start:]


def room(size: int) -> memoryview:
    """Allocates a receive buffer from reusable memory.  The system commits fresh memory only when it is written, so a
    large announced length alone costs nothing.
    """
    if size < SMALL_BYTES:
        return memoryview(bytearray(size))
    # Imported late: numpy starts threads, and a process with threads cannot create a user namespace.
    from atoll.memory import empty_bytes  # noqa: PLC0415

    try:
        return empty_bytes(size).data
    except (MemoryError, ValueError):
        raise FrameError(f"a message of {size} bytes, for which there is no room") from None


def parse_json(payload: Buffer) -> dict[str, Any]:
    """Reads a payload that is a JSON object."""
    try:
        found = json.loads(bytes(payload), parse_constant=_refuse_constant)
    except (ValueError, RecursionError):
        raise FrameError("a payload that is not JSON") from None
    if not isinstance(found, dict):
        raise FrameError("a payload that is not a JSON object")
    return found


def read_reason(payload: Buffer) -> str:
    """Reads the reason in a REFUSE frame."""
    text = bytes(payload).decode(errors="replace")
    return "".join(c if c.isprintable() else "?" for c in text)[:LARGEST_REASON]


def _refuse_constant(name: str) -> None:
    """JSON has no NaN and no infinity."""
    raise ValueError(name)
