"""Sessions: the state that two nodes share, independent of connections.

A session outlives its connections.  Each of its two lanes has an outbox, an inbox and at most one carrier at a time.
When a carrier is lost, the lane resumes over the next one where it stopped.  Heartbeats use the control lane, so they
never wait behind bulk.  A peer that is silent for longer than a deadline is unreachable.
"""

import asyncio
import logging
import time
from typing import Any, Protocol

from atoll.errors import FrameError
from atoll.world.base import Lane, Message
from atoll.world.live.carrier import Carrier
from atoll.world.live.frames import Head, Kind, parse_json, read_reason
from atoll.world.live.keys import Address
from atoll.world.live.lane import LaneState
from atoll.world.live.queues import Outbox, Position

__all__ = ["LANES", "Session"]

log = logging.getLogger("atoll")

LANES = (Lane.CONTROL, Lane.BULK)
BEAT_S = 0.125
SUSPECT_S = 0.5
"""After this time of silence a peer is taken for unreachable, or after four round trips if that is longer."""
STUCK_S = 0.5
"""After this time without progress, beyond the expected time, a lane's connection is replaced."""


class Relays(Protocol):
    """The part of the relay routes that a session uses."""

    async def relayed(self, session: "Session", carrier: Carrier, head: Head, payload: memoryview) -> None: ...

    def lost(self, number: int) -> None: ...


class Home(Protocol):
    """The part of the host that a session uses."""

    @property
    def routes(self) -> Relays: ...

    def count(self, size: int) -> None: ...

    def deliver(self, session: "Session", message: Message, since: float) -> None: ...

    def news(self, session: "Session", found: dict[str, Any]) -> None: ...

    def reach_changed(self, session: "Session", *, was_reachable: bool) -> None: ...

    def refused(self, who: str, why: str) -> None: ...

    def refused_by(self, session: "Session", why: str) -> None: ...


class Session:
    """The shared state of this node and one peer."""

    def __init__(self, name: str, *, host: Home, most_strands: int = 1) -> None:
        self.name = name
        self._host = host
        self.life = 0
        """Identifies the peer's process; a restart changes it."""
        self.id: str | None = None
        """The peer's key."""
        self.listen: list[Address] = []
        """The addresses that it announced."""
        self.round_trip_s = 0.0
        """The round-trip time of the control lane, smoothed."""
        self.least_round_trip_s = 0.0
        self.last_round_trip_s = 0.0
        self.reaches: dict[str, float] = {}
        """The nodes that the peer reaches directly, and the round-trip time to each."""
        self.links: dict[str, dict[str, float]] = {}
        """The peer's measurements of its links."""
        self.step_s = 0.0
        """How long the peer's training step takes."""
        self._ways = {lane: LaneState(lane, name, most_strands) for lane in LANES}
        self._heard_at = 0.0
        self._gap_s = BEAT_S
        self.changed = asyncio.Event()
        """Set whenever a carrier is attached or dropped."""
        self.acknowledged = asyncio.Event()
        """Set on every acknowledgement, and whenever a carrier is attached or dropped."""
        self._tasks = [
            asyncio.create_task(self._send(way), name=f"{lane.value} for {name}") for lane, way in self._ways.items()
        ]
        self._tasks.append(asyncio.create_task(self._beat(), name=f"heartbeats for {name}"))

    # State ---

    @property
    def reachable(self) -> bool:
        return self._ways[Lane.CONTROL].carrier is not None

    def carrier(self, lane: Lane) -> Carrier | None:
        return self._ways[lane].carrier

    def direct(self, lane: Lane) -> Carrier | None:
        """Returns a lane's carrier, if it leads directly to the peer."""
        carrier = self._ways[lane].carrier
        return carrier if carrier and carrier.via is None else None

    def outbox(self, lane: Lane) -> Outbox:
        return self._ways[lane].outbox

    def position(self, lane: Lane) -> Position:
        return self._ways[lane].inbox.position

    def wanted_strands(self, lane: Lane) -> int:
        """Of how many connections a lane should consist."""
        return self._ways[lane].strand_count.wanted

    def cannot_widen(self, lane: Lane) -> None:
        """So many connections could not be opened."""
        carrier = self._ways[lane].carrier
        self._ways[lane].strand_count.fails(len(carrier.strands) if carrier else 1)

    def age_s(self, lane: Lane) -> float:
        """How long a lane has had its carrier."""
        return time.monotonic() - self._ways[lane].began_at

    @property
    def twice_bytes(self) -> int:
        """Bytes that the peer sent more than once."""
        return sum(way.inbox.twice_bytes for way in self._ways.values())

    @property
    def rate(self) -> float:
        """The delivery rate of the bulk lane, in bytes per second."""
        return self._ways[Lane.BULK].pace.rate

    @property
    def under_way(self) -> int:
        """Bytes in flight: sent and not acknowledged."""
        return sum(way.pace.under_way for way in self._ways.values())

    async def flushed(self) -> None:
        """Returns when all messages are acknowledged, or the peer is unreachable."""
        while self.reachable and any(len(way.outbox) for way in self._ways.values()):
            self.acknowledged.clear()
            await self.acknowledged.wait()

    # Carriers ---

    def meet(self, life: int) -> None:
        """The peer has identified itself; if it has restarted, the session restarts too."""
        if life == self.life:
            return
        if self.life:
            log.info("%s has restarted", self.name)
        self.life = life
        for way in self._ways.values():
            self.drop(way.lane, "the peer has begun anew")
            way.inbox.restart()
            way.outbox.restart()

    def attach(self, carrier: Carrier, position: Position) -> None:
        """Resumes over a carrier, from the peer's position."""
        way = self._ways[carrier.lane]
        old, reader = way.carrier, way.reader
        was_reachable = self.reachable
        way.begin(carrier, position)
        way.reader = asyncio.create_task(self._read(way, carrier), name=f"reading {carrier.lane.value} of {self.name}")
        if old:
            old.close()
        if reader:
            reader.cancel()
        if carrier.lane is Lane.CONTROL:
            self._heard_at = time.monotonic()
            self._gap_s = BEAT_S
        way.wake.set()
        self._note_change(was_reachable)

    def drop(self, lane: Lane, why: str, carrier: Carrier | None = None) -> None:
        """Drops a lane's carrier; without control, bulk is dropped too."""
        way = self._ways[lane]
        if way.carrier is None or (carrier is not None and way.carrier is not carrier):
            return
        was_reachable = self.reachable
        log.debug("%s, %s: %s", self.name, lane.value, why)
        way.carrier.close()
        way.carrier = None
        if way.reader and way.reader is not asyncio.current_task():
            way.reader.cancel()
        way.reader = None
        if lane is Lane.CONTROL:
            self.reaches = {}
            self.drop(Lane.BULK, why)
        self._note_change(was_reachable)

    def _note_change(self, was_reachable: bool) -> None:  # noqa: FBT001 - private
        self.changed.set()
        self.changed = asyncio.Event()
        self.acknowledged.set()
        self._host.reach_changed(self, was_reachable=was_reachable)

    async def close(self) -> None:
        carrier = self._ways[Lane.CONTROL].carrier
        if carrier:
            try:
                async with asyncio.timeout(0.2):
                    await carrier.send(Kind.BYE)
            except (OSError, TimeoutError):
                pass
        self.drop(Lane.CONTROL, "leaving")
        self.drop(Lane.BULK, "leaving")
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    # Sending ---

    async def _send(self, way: LaneState) -> None:
        """Sends the messages of an outbox, within the window of its pace."""
        while True:
            carrier = way.carrier
            chunk = None
            if carrier and way.pace.under_way < way.pace.window:
                chunk = way.outbox.next(way.pace.chunk)
            if chunk is None or carrier is None:
                way.wake.clear()
                await way.wake.wait()
                continue
            if not way.sent:
                way.progress_at = time.monotonic()
            size = chunk.size + 1
            limited = way.pace.under_way + size < way.pace.window and not way.outbox.waiting
            way.sent.append((chunk.ends, way.pace.send(size, time.monotonic(), limited=limited)))
            try:
                await carrier.send(chunk.kind, chunk.number, chunk.offset, chunk.payload)
            except OSError as error:
                self.drop(way.lane, f"lost while sending ({error})", carrier)
                continue
            self._host.count(size)
            if way.carrier is carrier:
                way.outbox.left(chunk)

    async def _beat(self) -> None:
        """Sends heartbeats, and drops the control lane when the peer is silent for too long."""
        before = time.monotonic()
        while True:
            await asyncio.sleep(BEAT_S)
            now = time.monotonic()
            late = now - before - BEAT_S
            before = now
            if late > BEAT_S:  # this process was paused: frames that arrived meanwhile are unread
                self._heard_at += late
                for way in self._ways.values():
                    way.progress_at += late
            control = self._ways[Lane.CONTROL].carrier
            if control is None:
                continue
            silent = now - self._heard_at
            if silent > self._deadline_s():
                self.drop(Lane.CONTROL, f"silent for {silent:.2f} s")
                continue
            self._post(control, Kind.BEAT, number=time.monotonic_ns())
            self._look_for_progress(now)
            self._ways[Lane.BULK].look_at_its_rate(now, self.least_round_trip_s)

    def _deadline_s(self) -> float:
        return max(SUSPECT_S, 4 * self.round_trip_s, 3 * self._gap_s)

    def _look_for_progress(self, now: float) -> None:
        """Drops the bulk connection if it makes no progress while heartbeats arrive.  It would wait for TCP's time-out;
        a new one resumes at once.
        """
        way = self._ways[Lane.BULK]
        if way.carrier is None or not way.sent:
            return
        expected = STUCK_S + 4 * self.round_trip_s
        if way.pace.rate:
            expected += 2 * way.pace.under_way / way.pace.rate
        else:
            expected += 2.0
        if now - way.progress_at > expected:
            self.drop(Lane.BULK, f"no progress for {now - way.progress_at:.2f} s")

    def _post(self, carrier: Carrier, kind: Kind, number: int = 0, offset: int = 0, payload: bytes = b"") -> None:
        """Sends a small frame without waiting for it."""
        try:
            carrier.post(kind, number, offset, payload)
        except OSError as error:
            self.drop(carrier.lane, f"lost while sending ({error})", carrier)

    def tell(self, kind: Kind, number: int = 0, payload: bytes = b"") -> None:
        """Sends a small frame over the control lane, if it has a carrier."""
        carrier = self._ways[Lane.CONTROL].carrier
        if carrier:
            self._post(carrier, kind, number, payload=payload)

    # Receiving ---

    async def _read(self, way: LaneState, carrier: Carrier) -> None:
        try:
            while True:
                head, payload = await carrier.receive(way.inbox.place)
                if way.lane is Lane.CONTROL:  # bulk may use another route, which proves nothing about this one
                    self._heard()
                await self._take(way, carrier, head, payload)
        except FrameError as error:
            self._host.refused(self.name, str(error))
            self.drop(way.lane, str(error), carrier)
        except OSError as error:
            self.drop(way.lane, f"lost ({error})", carrier)
        except Exception as error:
            log.exception("a frame of %s has failed", self.name)
            self._host.refused(self.name, f"{type(error).__name__}: {error}")
            self.drop(way.lane, "a frame that has failed", carrier)

    def _heard(self) -> None:
        now = time.monotonic()
        gap = now - self._heard_at
        self._heard_at = now
        if gap > self._gap_s:
            self._gap_s = min(gap, 4 * SUSPECT_S)
        else:
            self._gap_s += 0.02 * (max(gap, BEAT_S) - self._gap_s)

    async def _take(self, way: LaneState, carrier: Carrier, head: Head, payload: memoryview) -> None:
        if head.kind in (Kind.OPEN, Kind.PART, Kind.VOID):
            whole = way.inbox.take(head, payload, time.monotonic())
            number, offset = way.inbox.position
            acks = self._ways[Lane.CONTROL].carrier or carrier
            self._post(acks, Kind.ACK, number, offset, b"\x01" if way.lane is Lane.BULK else b"\x00")
            if whole:
                self._host.deliver(self, *whole)
        elif head.kind is Kind.ACK:
            if head.size != 1:
                raise FrameError("an acknowledgement that does not say of what")
            self._acknowledged(self._ways[LANES[payload[0] == 1]], (head.number, head.offset))
        elif head.kind is Kind.BEAT:
            self._post(carrier, Kind.ECHO, head.number)
        elif head.kind is Kind.ECHO:
            self._echoed(head.number)
        elif head.kind is Kind.NEWS:
            self._host.news(self, parse_json(payload))
        elif head.kind is Kind.RELAY:
            await self._host.routes.relayed(self, carrier, head, payload)
        elif head.kind is Kind.LOST:
            self._host.routes.lost(head.number)
        elif head.kind is Kind.BYE:
            self.drop(Lane.CONTROL, "it has left")
        elif head.kind is Kind.REFUSE:  # the peer has dialled, and another process has this node's seat
            self._host.refused_by(self, read_reason(payload))
            self.drop(Lane.CONTROL, "it has met another process in this node's place")
        else:
            raise FrameError(f"a frame of kind {head.kind.name} in the middle of a session")

    def _acknowledged(self, way: LaneState, position: Position) -> None:
        now = time.monotonic()
        way.outbox.acknowledge(position)
        while way.sent and way.sent[0][0] <= position:
            way.pace.acknowledge(way.sent.popleft()[1], now)
            way.progress_at = now
        way.wake.set()
        self.acknowledged.set()

    def _echoed(self, number: int) -> None:
        seconds = (time.monotonic_ns() - number) / 1e9
        if not 0 < seconds < 60:
            return
        self.last_round_trip_s = seconds
        self.round_trip_s += (seconds - self.round_trip_s) * (0.125 if self.round_trip_s else 1.0)
        self.least_round_trip_s = min(self.least_round_trip_s or seconds, seconds)
        for way in self._ways.values():
            way.pace.measure(seconds)
