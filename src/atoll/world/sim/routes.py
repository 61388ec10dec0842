"""Routes: over the link that two nodes share, or else along the shortest working path, or none.

Shortest is by latency, then by number of links, then by name.  Two nodes with a link of their own use only that link:
while it is down they cannot reach each other (relaying through a third node is up to the nodes, not the network).  Most
points of a large network have one link only; paths are searched among the others.
"""

import heapq
from collections.abc import Callable, Iterable

from atoll.network import Network
from atoll.network.model import Link

__all__ = ["Routes"]

Step = tuple[Link, bool]  # a link and whether it is used from a to b


class Routes:
    """Paths through a network whose links go up and down."""

    def __init__(
        self, network: Network, is_up: Callable[[Link], bool], latency_of: Callable[[Link, bool], float]
    ) -> None:
        self._is_up = is_up
        self._latency_of = latency_of
        self._steps: dict[str, dict[str, Step]] = {}
        for link in network.links:
            self._steps.setdefault(link.a, {})[link.b] = link, True
            self._steps.setdefault(link.b, {})[link.a] = link, False
        core = {point for point, steps in self._steps.items() if len(steps) > 1}
        self._core = {
            point: [(name, self._steps[point][name]) for name in sorted(core.intersection(self._steps[point]))]
            for point in core
        }
        self._found: dict[tuple[str, str], tuple[Step, ...] | None] = {}
        self.version = 0

    def own_link(self, sender: str, receiver: str) -> Link | None:
        """The link that two points share, if they do."""
        step = self._steps.get(sender, {}).get(receiver)
        return step[0] if step else None

    def leaf_of(self, link: Link) -> str | None:
        """The point whose only link is this one, if any: paths between other points do not depend on the link."""
        for point in (link.a, link.b):
            if len(self._steps[point]) == 1:
                return point
        return None

    def are_joined(self, sender: str, receiver: str, counts: Callable[[Link], bool]) -> bool:
        """Whether one node could reach another over the links that count."""
        own = self.own_link(sender, receiver)
        if own:
            return counts(own)
        seen, left = {sender}, [sender]
        while left:
            for neighbour, (link, _) in self._steps.get(left.pop(), {}).items():
                if neighbour not in seen and counts(link):
                    seen.add(neighbour)
                    left.append(neighbour)
        return receiver in seen

    def forget(self) -> None:
        """Clears the cache; call it when a link went up or down, or latencies changed."""
        self._found.clear()
        self.version += 1

    def find(self, sender: str, receiver: str) -> tuple[Step, ...] | None:
        """The links from one node to another, in order; `None` if there is no working path."""
        own = self._steps.get(sender, {}).get(receiver)
        if own:
            return (own,) if self._is_up(own[0]) else None
        # A point with one link only: the search begins, or ends, at its one neighbour.
        start, first = self._towards_core(sender)
        end, last = self._towards_core(receiver)
        if start is None or end is None:
            return None
        if start == end:
            middle: tuple[Step, ...] | None = ()
        else:
            key = start, end
            if key not in self._found:
                self._found[key] = self._dijkstra(start, end)
            middle = self._found[key]
        if middle is None:
            return None
        return (*first, *middle, *((link, not forward) for link, forward in last))

    def _towards_core(self, point: str) -> tuple[str | None, tuple[Step, ...]]:
        if point in self._core:
            return point, ()
        for neighbour, step in self._steps.get(point, {}).items():
            return (neighbour, (step,)) if self._is_up(step[0]) else (None, ())
        return None, ()

    def _dijkstra(self, start: str, end: str) -> tuple[Step, ...] | None:
        best: dict[str, tuple[float, int]] = {start: (0.0, 0)}
        came: dict[str, tuple[str, Step]] = {}
        heap: list[tuple[float, int, str]] = [(0.0, 0, start)]
        while heap:
            latency, hops, point = heapq.heappop(heap)
            if point == end:
                return tuple(reversed(list(self._backwards(came, end))))
            if (latency, hops) > best[point]:
                continue
            for neighbour, step in self._core.get(point, []):
                if not self._is_up(step[0]):
                    continue
                cost = latency + self._latency_of(*step), hops + 1
                if neighbour not in best or cost < best[neighbour]:
                    best[neighbour] = cost
                    came[neighbour] = point, step
                    heapq.heappush(heap, (*cost, neighbour))
        return None

    @staticmethod
    def _backwards(came: dict[str, tuple[str, Step]], end: str) -> Iterable[Step]:
        while end in came:
            end, step = came[end]
            yield step
