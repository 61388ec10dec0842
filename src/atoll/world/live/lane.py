"""One lane of a session: what waits to be sent, what arrives, and the connections that carry it."""

import asyncio
import time
from collections import deque

from atoll.world.base import Lane
from atoll.world.live.carrier import Carrier
from atoll.world.live.pace import Pace, Sent
from atoll.world.live.queues import Inbox, Outbox, Position
from atoll.world.live.strands import WARM_S, StrandCount

__all__ = ["LaneState"]

PAUSE_S = 1.0
"""A process that looks later than that was paused."""


class LaneState:
    """One lane: its queues, and its current carrier."""

    def __init__(self, lane: Lane, peer: str, most_strands: int) -> None:
        self.lane = lane
        self.wake = asyncio.Event()
        self.outbox = Outbox(self.wake.set)
        self.inbox = Inbox(peer)
        self.carrier: Carrier | None = None
        self.reader: asyncio.Task[None] | None = None
        self.pace = Pace(time.monotonic())
        self.sent: deque[tuple[Position, Sent]] = deque()
        """Chunks that are not acknowledged."""
        self._most_strands = most_strands
        self.strand_count = StrandCount(most_strands)
        self._seen_at = 0.0
        self._seen_bytes = 0
        self._was_busy = False
        self.progress_at = 0.0
        self.began_at = 0.0
        self._via: str | None = None

    def begin(self, carrier: Carrier, position: Position) -> None:
        now = time.monotonic()
        self.outbox.resume(position)
        self.carrier = carrier
        if self._via != carrier.via:  # another route: nothing is known about it
            self._via = carrier.via
            self.pace, self.strand_count = Pace(now), StrandCount(self._most_strands)
        self.pace.limits_its_queue = carrier.limits_its_queue
        self.pace.strands = len(carrier.strands)
        self.pace.under_way = 0
        self.sent.clear()
        self.progress_at = self.began_at = now

    @property
    def _moved_bytes(self) -> int:
        """How many bytes have arrived, here and there."""
        return self.pace.delivered + self.inbox.taken_bytes

    def look_at_its_rate(self, now: float, round_trip_s: float) -> None:
        """Called regularly: while the lane is busy, its rate shows whether it should have more strands."""
        is_busy = self.outbox.waiting or self.inbox.is_under_way
        carrier, moved = self.carrier, self._moved_bytes
        is_known = is_busy and self._was_busy and now - self._seen_at < PAUSE_S and now - self.began_at > WARM_S
        if carrier and carrier.via is None and is_known:
            self.strand_count.observe(
                now - self._seen_at,
                moved - self._seen_bytes,
                count=len(carrier.strands),
                round_trip_s=round_trip_s,
                tolerates_loss=carrier.limits_its_queue,
            )
        self._was_busy, self._seen_at, self._seen_bytes = is_busy, now, moved
