"""The messages of `atoll.strategies.deltas`, in which nodes send each other changes."""

import math
import struct
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import torch

from atoll.codecs import Codec
from atoll.collectives import Body
from atoll.state import Saved
from atoll.strategies.replica import MOST_WORK, Quantity, Replica, Work
from atoll.vectors import Numbers, Vector, added, all_finite, as_array, minus, of_bytes, sealed
from atoll.world.base import Buffer

__all__ = [
    "ACKNOWLEDGEMENT",
    "ASK",
    "BASE",
    "CHANGE",
    "EVERYTHING",
    "FOUNDERS",
    "HEAD",
    "ChangeWire",
    "Origin",
    "Told",
    "as_arrays",
    "read_head",
    "with_change",
]

CHANGE, ACKNOWLEDGEMENT, EVERYTHING, BASE = "change", "change ack", "all changes please", "what it began from"
HEAD = struct.Struct("<QddQ")  # the sender's step, seconds when it was sent, its origin
ASK = struct.Struct("<Q?")  # how often the sender has asked, and whether it is new

Origin = tuple[float, int]
"""The start time of a run, and the rank of the node that began it."""
FOUNDERS: Origin = (0.0, 0)


@dataclass(frozen=True, slots=True)
class Told:
    """The content of a peer's message."""

    change: Vector
    buffers: Vector
    """The peer's own buffers."""
    work: Work
    """The work that the peer has done."""


def read_head(head: bytes) -> tuple[int, float, Origin]:
    """The sender's step, the time of sending, and the origin of the sender's run."""
    step, sent_s, began_s, rank = HEAD.unpack(head)
    if not 0 <= began_s < math.inf:
        raise ValueError(f"no run can have begun at {began_s} s")
    return step, sent_s, (began_s, rank)


def as_arrays(vectors: dict[str, Vector]) -> Saved:
    """Vectors as a checkpoint has them."""
    return {name: as_array(values) for name, values in vectors.items()}


def with_change(known: Vector | None, change: Vector) -> Vector:
    """The sum of the changes so far and of another one."""
    return change if known is None else added([known, change])


class ChangeWire:
    """Writes and reads messages of changes, on a thread beside the event loop.

    Args:
        replica: the node's own model.
        codec: encodes changes; `None`: uncompressed.
    """

    def __init__(self, replica: Replica, codec: Codec | None) -> None:
        self._replica = replica
        self._codec = codec
        self._buffers: Numbers = np.zeros(0, dtype=np.float32)

    def look(self) -> None:
        """Reads the model's buffers, at a step boundary: messages are written and read while training goes on."""
        self._buffers = as_array(self._replica.read(Quantity.BUFFERS))

    def write(self, told: Vector, changed: Vector) -> tuple[Vector, Buffer]:
        """The message with the changes that a peer does not have yet, and what it will have then.

        Args:
            told: the changes that it has.
            changed: all of this node's changes.
        """
        replica = self._replica
        if self._codec is None:
            return changed, sealed(minus(changed, told), *self._own())
        encoded = self._codec.encode(minus(changed, told), replica.steps)
        return added([told, self._codec.decode(encoded, len(told), replica.steps)]), sealed(encoded, *self._own())

    def read(self, body: Body, step: int) -> Told:
        """Reads a change; `step` is the sender's step at encoding."""
        return self._read(body, lambda part: self._decode(part, step))

    def write_base(self, base: Vector, changed: Vector) -> Buffer:
        """The message with the run's initial model and all of this node's changes."""
        return sealed(torch.cat([base, changed]), *self._own())

    def read_base(self, body: Body) -> tuple[Vector, Told]:
        """Reads the initial model and all changes of a peer."""
        size, device = 4 * self._replica.size, self._replica.device
        base = of_bytes(body[:size], device=device)
        if len(base) != self._replica.size or not all_finite(base):
            raise ValueError(f"{len(body)} bytes are not what a model of {self._replica.size} began from")
        return base, self._read(body[size:], lambda part: of_bytes(part, device=device))

    def _decode(self, body: Body, step: int) -> Vector:
        if self._codec is None:
            return of_bytes(body, device=self._replica.device)
        return self._codec.decode(of_bytes(body, torch.uint8, self._replica.device), self._replica.size, step)

    def _own(self) -> tuple[Numbers, Numbers]:
        """The node's buffers at the last step boundary, and its own work."""
        replica = self._replica
        work = np.zeros(len(replica.members), dtype=np.int64)
        work[replica.rank] = replica.work[replica.rank]
        return self._buffers, work.view(np.float32)

    def _read(self, body: Body, decode: Callable[[Body], Vector]) -> Told:
        """Reads a peer's message; a `ValueError` if it is malformed."""
        replica = self._replica
        work_bytes, buffer_bytes = replica.work.nbytes, self._buffers.nbytes
        size = len(body) - work_bytes - buffer_bytes
        if size < 0:
            raise ValueError(f"{len(body)} bytes are no change")
        change = decode(body[:size])
        if len(change) != replica.size or not all_finite(change):
            raise ValueError(f"{len(body)} bytes are no change of a model of {replica.size}")
        buffers = of_bytes(body[size : size + buffer_bytes], device=replica.device)
        work = np.frombuffer(body[size + buffer_bytes :], dtype=np.int64)
        if not all_finite(buffers) or (work < 0).any() or (work > MOST_WORK).any():
            raise ValueError("buffers that are not finite, or work that nobody can have done")
        return Told(change, buffers, work)
