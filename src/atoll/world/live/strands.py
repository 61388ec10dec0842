"""Several connections for one lane: on a long path a single one may be slower than the path.

TCP's congestion control takes a lost packet for a full link (BBR does not), and the system limits what one connection
has in flight.  Frames take the connections, the strands, in turn, and so does the receiver: they stay in order without
numbers, and a strand that is late holds up the others only when their buffers are full.
"""

import asyncio
import os
from collections.abc import Sequence
from dataclasses import dataclass

from atoll.errors import FrameError
from atoll.world.base import Buffer
from atoll.world.live.carrier import Carrier, Place
from atoll.world.live.frames import Head, Kind

__all__ = ["MOST_STRANDS", "WARM_S", "Strand", "StrandCount", "Strands", "StripedCarrier"]

MOST_STRANDS = 16
MEASURED_S = 2.0
"""How long a lane must have been busy before its rate is known."""
WARM_S = 3.0
"""How long after it was opened a connection is not measured: it has lost nothing yet."""
PATIENCE_S = 10.0
"""The same once it is known how many strands to have."""
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


class Strands:
    """Incoming connections that were opened together, until all of them are there."""

    def __init__(self) -> None:
        self._waiting: dict[tuple[str, str], dict[int, Carrier]] = {}
        self._complete: dict[tuple[str, str], asyncio.Event] = {}

    async def gather(self, name: str, strand: Strand, carrier: Carrier) -> Carrier | None:
        """Returns all strands as one carrier to the caller with the last of them, once; `None` to the others, when all
        are there.  The caller gives up after some time.
        """
        if strand.count == 1:
            return carrier
        key = name, strand.together
        found, complete = self._waiting.setdefault(key, {}), self._complete.setdefault(key, asyncio.Event())
        if strand.place in found:
            raise FrameError(f"strand {strand.place} twice")
        found[strand.place] = carrier
        try:
            if len(found) == strand.count:
                complete.set()
                return StripedCarrier([found[place] for place in range(strand.count)])
            await complete.wait()
        finally:
            self._waiting.pop(key, None)
            self._complete.pop(key, None)
        return None


class StrandCount:
    """How many strands a lane should have: twice as many, as long as that makes it faster.  If the path becomes slower
    later, they are counted again.
    """

    def __init__(self) -> None:
        self.wanted = 1
        self._before = 0.0
        """The rate with half as many; 0: so many are the first."""
        self._settled: float | None = None
        """The rate when it was found that more are not faster."""
        self._patience_s = MEASURED_S
        self._busy_s = 0.0
        self._moved = 0

    def fails(self) -> None:
        """So many could not be opened."""
        self.wanted, self._settled = 1, 0.0

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
                self._settled, self._before = None, 0.0
            return
        self._patience_s = MEASURED_S
        may_be_faster = not tolerates_loss or rate / count * round_trip_s >= LONG_FAT_BYTES
        if self._before and rate < GAIN * self._before:
            self.wanted, self._settled = count // 2, self._before
            self._patience_s = PATIENCE_S
        elif may_be_faster and count < MOST_STRANDS:
            self.wanted, self._before = 2 * count, rate
