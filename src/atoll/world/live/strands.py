"""Several connections for one lane: on a long path a single one may be slower than the path.

TCP's congestion control takes a lost packet for a full link (BBR does not), and the system limits what one connection
has in flight.  Frames take the connections, the strands, in turn, and so does the receiver: they stay in order without
numbers, and a strand that is late holds up the others only when their buffers are full.
"""

import asyncio
import math
import os
from collections.abc import Sequence
from dataclasses import dataclass, field

from atoll.errors import FrameError
from atoll.world.base import Buffer
from atoll.world.live.carrier import Carrier, Place
from atoll.world.live.frames import Head, Kind

__all__ = ["MOST_STRANDS", "WARM_S", "Strand", "StrandCount", "Strands", "StripedCarrier"]

MOST_STRANDS = 16
MOST_GROUPS = 2
"""How many incomplete groups of strands a peer may have."""
COMPLETE_S = 5.0
"""The time limit for a group to be complete."""
MEASURED_S = 2.0
"""How long a lane must have been busy before its rate is known."""
WARM_S = 3.0
"""How long after it was opened a connection is not measured: it has lost nothing yet."""
PATIENCE_S = 10.0
"""The same once it is known how many strands to have."""
MOST_PATIENCE_S = 600.0
SLOWER = 2.0
"""By this factor a path must have become slower for its strands to be counted again."""
GAIN = 1.25
"""By this factor at least twice the strands must be faster to be kept."""
LEAST_ROUND_TRIP_S = 0.01
"""On shorter paths a single connection is as fast as the path."""
LONG_FAT_BYTES = 2 << 20
"""What a connection that does not mind lost packets may have in flight before the system's limits slow it down."""


@dataclass(frozen=True, slots=True)
class Strand:
    """The place of a connection among those of its lane."""

    place: int = 0
    count: int = 1
    together: str = ""
    """The same for all strands that were opened together."""

    @staticmethod
    def some(count: int) -> "list[Strand]":
        """The places of strands that are opened together."""
        together = os.urandom(8).hex()
        return [Strand(place, count, together) for place in range(count)]


class StripedCarrier(Carrier):
    """Sends each frame over the next of several connections.

    Args:
        strands: the connections, in the same order on both sides.
    """

    def __init__(self, strands: Sequence[Carrier]) -> None:
        super().__init__(strands[0].lane, dialled=strands[0].dialled)
        self._strands = tuple(strands)
        self._writes: list[asyncio.Task[None] | None] = [None] * len(strands)
        """The last frame of each strand."""
        self._writing = self._reading = 0
        """The strand of the next frame to send, and to receive."""
        self.limits_its_queue = all(strand.limits_its_queue for strand in strands)

    @property
    def via(self) -> str | None:
        return None

    @property
    def strands(self) -> tuple[Carrier, ...]:
        return self._strands

    async def send(self, kind: Kind, number: int = 0, offset: int = 0, payload: Sequence[Buffer] = ()) -> None:
        """Sends a frame; returns when the system has accepted the one before it on the same strand."""
        before = self._write(kind, number, offset, payload)
        if before is not None and not before.done():
            await asyncio.wait({before})
        if self.closed:
            raise ConnectionResetError("the connection is closed")

    def post(self, kind: Kind, number: int = 0, offset: int = 0, payload: bytes = b"") -> None:
        self._write(kind, number, offset, [payload])

    def _write(self, kind: Kind, number: int, offset: int, payload: Sequence[Buffer]) -> "asyncio.Task[None] | None":
        """Begins to send a frame, whatever becomes of the caller: the receiver waits for it in its turn.  Returns the
        frame before it on the same strand.
        """
        if self.closed:
            raise ConnectionResetError("the connection is closed")
        place, self._writing = self._writing, (self._writing + 1) % len(self._strands)
        before = self._writes[place]
        task = asyncio.create_task(self._strands[place].send(kind, number, offset, payload), name="a strand's frame")
        task.add_done_callback(self._written)
        self._writes[place] = task
        return before

    def _written(self, task: "asyncio.Task[None]") -> None:
        if task.cancelled() or task.exception() is not None:
            self.close()

    async def receive(self, place: Place | None = None) -> tuple[Head, memoryview]:
        found = await self._strands[self._reading].receive(place)
        self._reading = (self._reading + 1) % len(self._strands)
        return found

    def close(self) -> None:
        self.closed = True
        for strand in self._strands:
            strand.close()


@dataclass(slots=True)
class _Group:
    """Connections that a peer has opened together, until all of them are there."""

    about: tuple[int, str, int]
    """Their number, their lane, and the peer's life."""
    ends: asyncio.TimerHandle
    carriers: dict[int, Carrier] = field(default_factory=dict)


class Strands:
    """Incoming connections that wait for others that belong to them: for some seconds, and a few for each peer."""

    def __init__(self) -> None:
        self._groups: dict[tuple[str, str], _Group] = {}

    def add(self, name: str, strand: Strand, carrier: Carrier, *, life: int) -> Carrier | None:
        """Adds a connection of a peer.  Returns all that belong together, as one carrier, when this is the last of
        them; before that they are closed here if the others do not come.
        """
        if strand.count == 1:
            return carrier
        key, about = (name, strand.together), (strand.count, carrier.lane.value, life)
        group = self._groups.get(key)
        if group is None:
            for old in [each for each in self._groups if each[0] == name][: 1 - MOST_GROUPS]:
                self._end(old)
            ends = asyncio.get_running_loop().call_later(COMPLETE_S, self._end, key)
            group = self._groups[key] = _Group(about, ends)
        if strand.place in group.carriers or group.about != about:
            self._end(key)
            raise FrameError(f"strand {strand.place} of {strand.count} does not fit the others")
        group.carriers[strand.place] = carrier
        if len(group.carriers) < strand.count:
            return None
        group.ends.cancel()
        del self._groups[key]
        return StripedCarrier([group.carriers[place] for place in range(strand.count)])

    def _end(self, key: tuple[str, str]) -> None:
        group = self._groups.pop(key, None)
        if group is not None:
            group.ends.cancel()
            for carrier in group.carriers.values():
                carrier.close()

    def close(self) -> None:
        for key in list(self._groups):
            self._end(key)


class StrandCount:
    """How many strands a lane should have: twice as many, as long as that makes it faster.  If the path becomes slower
    later, they are counted again.
    """

    def __init__(self, most: int = MOST_STRANDS) -> None:
        self.wanted = 1
        self._most = most
        self._before = 0.0
        """The rate with half as many; 0: so many are the first."""
        self._settled: float | None = None
        """The rate when it was found that more are not faster."""
        self._patience_s = MEASURED_S
        self._again_s = PATIENCE_S
        self._busy_s = 0.0
        self._moved = 0

    def fails(self, count: int) -> None:
        """As many as are wanted could not be opened; there are `count`.  They are counted again after some time."""
        self.wanted, self._settled = count, math.inf
        self._busy_s, self._moved = 0.0, 0
        self._again_s = self._patience_s = min(2 * self._again_s, MOST_PATIENCE_S)

    def observe(self, seconds: float, moved: int, *, count: int, round_trip_s: float, tolerates_loss: bool) -> None:
        """Records that a lane with `count` strands was busy, and how many bytes were moved meanwhile.

        Args:
            seconds: how long.
            moved: bytes in both directions.
            count: the lane's strands.
            round_trip_s: of the path.
            tolerates_loss: whether lost packets do not slow a connection down (BBR).
        """
        if count != self.wanted or round_trip_s < LEAST_ROUND_TRIP_S:
            return
        self._busy_s += seconds
        self._moved += moved
        if self._busy_s < self._patience_s:
            return
        rate = self._moved / self._busy_s
        self._busy_s, self._moved = 0.0, 0
        if self._settled is not None:
            if rate < self._settled / SLOWER:
                self._settled, self._before, self._patience_s = None, 0.0, MEASURED_S
            return
        may_be_faster = not tolerates_loss or rate / count * round_trip_s >= LONG_FAT_BYTES
        if self._before and rate < GAIN * self._before:
            self.wanted, self._settled = count // 2, self._before
            self._patience_s = PATIENCE_S
        elif may_be_faster and count < self._most:
            self.wanted, self._before = 2 * count, rate
        elif count > 1 and count == self._most:
            self._settled, self._patience_s = rate, PATIENCE_S
