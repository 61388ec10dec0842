"""A connection: the messages from one node to another on one lane, in order, like a TCP connection.

It only holds state; `atoll.world.sim.links` changes it.
"""

import math
from asyncio import Future
from collections.abc import Callable

from atoll.world.sim.fair import Flow
from atoll.world.sim.loop import Timer
from atoll.world.sim.wires import LinkEnd, Path

__all__ = ["Connection", "Transfer"]


class Transfer:
    """One message on its way."""

    __slots__ = ("arrival", "began_s", "bytes", "deliver", "left", "offered_s", "path", "sent", "wire_bytes")

    def __init__(
        self, size: int, wire_bytes: float, sent: "Future[None]", deliver: Callable[["Transfer"], None], now: float
    ) -> None:
        self.bytes = size
        self.wire_bytes = wire_bytes
        self.left = wire_bytes
        self.sent = sent
        self.deliver = deliver
        self.offered_s = now
        self.began_s = math.nan
        self.arrival: Timer | None = None
        self.path: Path | None = None  # the path it is in flight on

    @property
    def is_fresh(self) -> bool:
        """Whether none of it has been sent."""
        return self.left == self.wire_bytes

    def unsend(self, lost: float) -> float:
        """Takes back up to `lost` bytes and returns how many it took back."""
        taken = min(lost, self.wire_bytes - self.left)
        self.left += taken
        return taken


class Connection(Flow):
    """The messages from one node to another on one lane."""

    __slots__ = (
        "broken_s",
        "finish_s",
        "flying",
        "idle_since_s",
        "last_arrival_s",
        "marks",
        "path",
        "queue",
        "quota",
        "receiver",
        "round_s",
        "round_trip_s",
        "segment",
        "sender",
        "sent_bytes",
        "since_s",
        "state",
        "timer",
        "wake_s",
        "window",
    )

    def __init__(self, sender: str, receiver: str) -> None:
        super().__init__()
        self.sender = sender
        self.receiver = receiver
        self.state = "idle"
        # Lists, not deques: they are short, there are many connections, and an empty deque takes ten times the memory.
        self.queue: list[Transfer] = []  # messages not fully sent; the first one is being sent
        self.flying: list[Transfer] = []  # messages fully sent that have not arrived
        self.path: Path | None = None
        self.timer: Timer | None = None
        self.last_arrival_s = 0.0
        self.broken_s = -math.inf  # when its path last failed under it
        # The piece being sent: as much of the first message as the window allows.
        self.segment = 0.0
        self.since_s = 0.0  # when the present rate began
        self.finish_s = math.inf
        self.wake_s = math.inf  # the time of the entry in the heap of finishes that counts
        # The window: how many bytes it allows in a round trip, how many are left, and when it was opened.
        self.window = 0.0  # raised to the initial window at the first send
        self.quota = math.inf
        self.round_s = -math.inf
        self.round_trip_s = 0.0
        self.idle_since_s = 0.0
        # How much was sent in all, now and at times within the last latency.
        self.sent_bytes = 0.0
        self.marks: list[tuple[float, float]] = []

    def mark(self, now: float) -> None:
        self.marks.append((now, self.sent_bytes))
        if len(self.marks) > 8 and self.path:
            horizon = now - self.path.latency_s(now)
            while len(self.marks) > 2 and self.marks[1][0] < horizon:
                del self.marks[0]

    def open_window(self, now: float) -> None:
        """Begins a round trip: if the last one used up the window, it doubles."""
        if self.quota <= 0:
            self.window *= 2
        self.round_s = now
        self.quota = self.window
        if self.path and self.window > 2 * self.path.peak * self.round_trip_s:
            self.quota = math.inf  # this path is never fast enough to use it up in a round trip

    def ready_s(self, path: Path, now: float) -> float:
        """When it can send: a round trip after the path works again, and after its last path broke."""
        return max(path.ready_s(now), self.broken_s + path.round_trip_s(now))

    def goes_through(self, ends: set[LinkEnd]) -> bool:
        """Whether it sends, or has something in flight, over one of these link ends."""
        paths = [self.path, *(transfer.path for transfer in self.flying)]
        return any(path and not ends.isdisjoint(path.ends) for path in paths)

    def under_way(self, now: float) -> float:
        """Bytes that were sent within the last latency."""
        latest = self.path or (self.flying[-1].path if self.flying else None)
        return self.sent_bytes - self.sent_by(now - latest.latency_s(now)) if latest else 0.0

    def send_again(self, lost: float, packet: float) -> None:
        """The bytes in flight are lost; at least the last packet has to be sent again."""
        if self.queue:
            lost -= self.queue[0].unsend(lost)
        for transfer in reversed(self.flying):
            assert transfer.arrival is not None
            transfer.arrival.cancel()
            lost -= transfer.unsend(max(lost, packet))
        self.queue[:0] = self.flying
        self.flying = []
        self.marks = []

    def sent_by(self, time: float) -> float:
        """How much had been sent at a time, at most one latency ago."""
        last_time, last_sent = -math.inf, self.sent_bytes if not self.marks else self.marks[0][1]
        for mark_time, sent in self.marks:
            if mark_time > time:
                if last_time == -math.inf:
                    return last_sent
                return last_sent + (sent - last_sent) * (time - last_time) / (mark_time - last_time)
            last_time, last_sent = mark_time, sent
        return last_sent
