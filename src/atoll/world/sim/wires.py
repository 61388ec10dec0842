"""The current state of links: their rates, latencies and whether they are up; and the paths made of them."""

import math
from collections.abc import Iterator

from atoll.network.model import Link, Way
from atoll.network.weather import changes_of_state, latency_at, rates
from atoll.seeds import stream
from atoll.world.sim.fair import Pipe

__all__ = ["LinkEnd", "LinkState", "Path"]

UNLIMITED = 1e15
"""Bytes a second of a link that has no limit now, but has one at other times: sums must stay finite."""


class LinkEnd(Pipe):
    """One direction of a link, with its weather: its current rate and latency."""

    __slots__ = ("_changes", "_draw", "_latency", "_next", "_run_s", "limited", "peak", "up_since_s", "way")

    def __init__(self, name: str, way: Way, seed: int, run_s: float | None) -> None:
        super().__init__(name)
        self.way = way
        self.limited = way.limited
        self.peak = min(way.most_rate_bps / 8, UNLIMITED)
        """The most bytes a second that it ever carries."""
        self.up_since_s = -math.inf
        self._run_s = run_s
        self._draw = stream(seed, "way", name, "latency") if way.walk or way.jitter_s or way.loss else None
        self._latency = self._draw.uniform(way.walk.low_s, way.walk.high_s) if way.walk and self._draw else 0.0
        self._changes: Iterator[tuple[float, float]] = rates(way, name, seed, run_s)
        self._next: tuple[float, float] | None = next(self._changes)
        self.advance(0.0)

    @property
    def next_change_s(self) -> float | None:
        return self._next[0] if self._next else None

    def advance(self, now: float) -> None:
        """Updates the rate to the weather of now."""
        while self._next and self._next[0] <= now:
            self.capacity = min(self._next[1] / 8, UNLIMITED)
            self._next = next(self._changes, None)

    def latency_s(self, now: float) -> float:
        return self._latency if self.way.walk else latency_at(self.way, now, self._run_s)

    def draw_latency_s(self, now: float, *, jitter: bool) -> float:
        """Draws the latency of one message; the link's latency may then walk."""
        latency = self.latency_s(now)
        way = self.way
        if self._draw is not None:
            if way.walk:
                self._latency = max(0.0, latency + self._draw.uniform(-way.walk.move_s, way.walk.move_s))
            if jitter and way.jitter_s:
                latency = max(0.0, latency + self._draw.normalvariate(0.0, way.jitter_s))
        return latency

    def is_lost(self, packets: int) -> bool:
        """Whether one of this many packets is lost."""
        return self._draw is not None and self._draw.random() >= (1 - self.way.loss) ** packets


class LinkState:
    """A link, its two directions, and whether it is up."""

    __slots__ = ("back", "changed_s", "link", "next_change", "schedule", "there", "up")

    def __init__(self, link: Link, seed: int, run_s: float | None) -> None:
        self.link = link
        self.up = True
        self.changed_s = -math.inf
        self.there = LinkEnd(f"{link.a}>{link.b}", link.there, seed, run_s)
        self.back = LinkEnd(f"{link.b}>{link.a}", link.back, seed, run_s)
        self.schedule = changes_of_state(link, seed)
        self.next_change = next(self.schedule, None)


class Path:
    """A path through the network, with the properties that a transport would measure."""

    __slots__ = ("_latency_s", "_reverse", "_reverse_s", "changing", "ends", "loss", "peak", "pipes", "version")

    def __init__(self, ends: list[LinkEnd], reverse: list[LinkEnd], access: list[Pipe], version: int) -> None:
        self.ends = ends
        self.pipes = (*access, *[end for end in ends if end.limited])
        self.changing = [end for end in ends if end.next_change_s is not None]
        self.peak = min([*(pipe.capacity for pipe in access), *(end.peak for end in ends)], default=math.inf)
        self.loss = 1 - math.prod([1 - end.way.loss for end in ends])
        self.version = version
        self._reverse = reverse
        # Most latencies never change: add them up once.
        self._latency_s = _steady_latency_s(ends)
        self._reverse_s = _steady_latency_s(reverse)

    def latency_s(self, now: float) -> float:
        if self._latency_s is not None:
            return self._latency_s
        return sum(end.latency_s(now) for end in self.ends)

    def ready_s(self, now: float) -> float:
        """When a transport that reconnects at once can use it: a round trip after its last link has come back."""
        return max(end.up_since_s for end in self.ends) + self.round_trip_s(now)

    def round_trip_s(self, now: float) -> float:
        if self._reverse_s is not None:
            return self.latency_s(now) + self._reverse_s
        return self.latency_s(now) + sum(end.latency_s(now) for end in self._reverse)


def _steady_latency_s(ends: list[LinkEnd]) -> float | None:
    total = 0.0
    for end in ends:
        if end.way.walk or end.way.phases:
            return None
        total += end.way.latency_s
    return total
