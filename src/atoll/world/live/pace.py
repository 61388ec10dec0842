"""Pace limits the bytes in flight of a lane, so that the links are full and their queues are short.

As in BBR (Cardwell et al., 2016) the limit follows from the delivery rate and from the round-trip time without queues.
It allows a short standing queue: a link that becomes faster is noticed, and a shared link is not congested.  The window
starts by doubling.
"""

from collections import deque
from dataclasses import dataclass

__all__ = ["QUEUE_S", "Pace", "Sent"]

QUEUE_S = 0.045
"""The target length of a queue, in seconds.  A single lane keeps a queue of this length; if several lanes share a link,
they measure a longer queue, and each reduces its part.
"""
LEAST_QUEUE_S = 0.003
LEAST_WINDOW = 1 << 16
LEAST_CHUNK, MOST_CHUNK = 1 << 14, 1 << 22
CHUNK_S = 0.008
REMEMBERED_S = 2.0
STARTUP_GAIN = 2.0
GROWTH = 1.25
PATIENCE = 3


@dataclass(frozen=True, slots=True)
class Sent:
    """The state when a chunk was sent."""

    size: int
    at: float
    delivered: int
    delivered_at: float
    limited: bool
    """There was too little to send: the rate is then a lower bound, and counts only if it is higher than before."""


class Pace:
    """Estimates a route's rate and round-trip time from acknowledgements."""

    def __init__(self, now: float) -> None:
        self.under_way = 0
        self.rate = 0.0
        """In bytes per second."""
        self.round_trip_s = 0.0
        """The round-trip time without queues."""
        self.limits_its_queue = False
        """Whether the connection itself keeps queues short (BBR).  The window then has room for one more round trip:
        after a loss TCP delivers nothing for that long, and must not run out of data meanwhile.
        """
        self.strands = 1
        """Of how many connections it is the pace.  Several are there because of losses: they need the same room."""
        self._delivered = 0
        self._delivered_at = now
        self._rates: deque[tuple[float, float]] = deque()
        self._starting = True
        self._best = 0.0
        self._stale = 0
        self._round_ends = 0
        self._queue_s = QUEUE_S
        """The length of this lane's own part of the queue."""

    @property
    def delivered(self) -> int:
        """How many bytes were acknowledged."""
        return self._delivered

    @property
    def window(self) -> int:
        """How many bytes may be in flight."""
        least = LEAST_WINDOW * self.strands
        if not self.rate:
            return least
        round_trips = 2 if self.limits_its_queue or self.strands > 1 else 1
        room = self.rate * (round_trips * self.round_trip_s + self._queue_s)
        return max(least, int(room * (STARTUP_GAIN if self._starting else 1.0)))

    @property
    def chunk(self) -> int:
        """How many bytes to send in one frame."""
        return min(MOST_CHUNK, max(LEAST_CHUNK, int(self.rate * CHUNK_S)))

    def send(self, size: int, now: float, *, limited: bool) -> Sent:
        if not self.under_way:
            self._delivered_at = now
        self.under_way += size
        return Sent(size, now, self._delivered, self._delivered_at, limited)

    def acknowledge(self, sent: Sent, now: float) -> None:
        self.under_way -= sent.size
        self._delivered += sent.size
        self._delivered_at = now
        self.measure(now - sent.at)
        interval = now - min(sent.delivered_at, sent.at)
        if interval <= 0:
            return
        rate = (self._delivered - sent.delivered) / max(interval, self.round_trip_s)
        while self._rates and now - self._rates[0][0] > REMEMBERED_S and len(self._rates) > 1:
            self._rates.popleft()
        if not sent.limited or rate > self.rate:
            while self._rates and self._rates[-1][1] <= rate:
                self._rates.pop()
            self._rates.append((now, rate))
        if self._rates:
            self.rate = self._rates[0][1]
        self._share_the_queue(sent, now)
        if self._starting and sent.delivered >= self._round_ends:
            self._round_ends = self._delivered
            self._look_whether_it_still_grows(limited=sent.limited)

    def _look_whether_it_still_grows(self, *, limited: bool) -> None:
        if self.rate >= GROWTH * self._best:
            self._best, self._stale = self.rate, 0
        elif not limited:
            self._stale += 1
            self._starting = self._stale < PATIENCE

    def _share_the_queue(self, sent: Sent, now: float) -> None:
        part = min(1.0, sent.size / self.window)
        if now - sent.at - self.round_trip_s - sent.size / max(self.rate, 1.0) > 1.1 * QUEUE_S:
            self._queue_s = max(LEAST_QUEUE_S, self._queue_s * (1 - 0.2 * part))
        else:
            self._queue_s = min(QUEUE_S, self._queue_s + 0.05 * QUEUE_S * part)

    def measure(self, seconds: float) -> None:
        """Records a measured round-trip time."""
        if seconds > 0:
            self.round_trip_s = min(self.round_trip_s or seconds, seconds)
