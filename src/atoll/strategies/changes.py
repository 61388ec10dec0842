"""The messages of `atoll.strategies.deltas`, in which nodes send each other changes."""

import math
import struct
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from atoll.collectives import Body
from atoll.strategies.replica import MOST_WORK, Quantity, Replica, Work
from atoll.vectors import Vector, all_finite

__all__ = [
    "ACKNOWLEDGEMENT",
    "ASK",
    "BASE",
    "CHANGE",
    "EVERYTHING",
    "FOUNDERS",
    "HEAD",
    "Origin",
    "Told",
    "floats",
    "read_head",
    "read_told",
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


def floats(body: Body) -> Vector:
    """Reads uncompressed values."""
    return np.frombuffer(body, dtype=np.float32)


def read_told(replica: Replica, body: Body, count: int, decode: Callable[[Body], Vector]) -> Told:
    """Reads a peer's message; a `ValueError` if it is malformed.

    Args:
        replica: the node's own model.
        body: the body of the message.
        count: the number of values of the model.
        decode: reads the change.
    """
    work_bytes, buffer_bytes = replica.work.nbytes, replica.read(Quantity.BUFFERS).nbytes
    size = len(body) - work_bytes - buffer_bytes
    if size < 0:
        raise ValueError(f"{len(body)} bytes are no change")
    change = decode(body[:size])
    if change.shape != (count,) or not all_finite(change):
        raise ValueError(f"{len(body)} bytes are no change of a model of {count}")
    buffers = np.frombuffer(body[size : size + buffer_bytes], dtype=np.float32)
    work = np.frombuffer(body[size + buffer_bytes :], dtype=np.int64)
    if not all_finite(buffers) or (work < 0).any() or (work > MOST_WORK).any():
        raise ValueError("buffers that are not finite, or work that nobody can have done")
    return Told(change, buffers, work)
