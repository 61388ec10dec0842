"""Reach: whether a node has noticed that it can reach a peer, as a transport with heartbeats would notice it."""

import asyncio
from collections.abc import Callable

from atoll.trace import ReachChanged
from atoll.world.sim.links import Links
from atoll.world.sim.loop import Timer, VirtualLoop
from atoll.world.sim.physics import notice_s

__all__ = ["Reach"]


class Reach:
    """Whether one node has noticed that it can reach another."""

    __slots__ = (
        "_links",
        "_loop",
        "_noticed",
        "_round_trip_s",
        "_timer",
        "_works",
        "node",
        "peer",
        "reachable",
        "waiting",
    )

    def __init__(
        self, links: Links, loop: VirtualLoop, noticed: Callable[[ReachChanged], None], node: str, peer: str
    ) -> None:
        self._links = links
        self._loop = loop
        self._noticed = noticed
        self.node = node
        self.peer = peer
        self._timer: Timer | None = None
        self.waiting: list[asyncio.Future[None]] = []
        round_trip_s = self._links.round_trip_s(node, peer)
        self._round_trip_s = round_trip_s or 0.0
        self._works = self.reachable = round_trip_s is not None
        # The state that it would have noticed by now, had it existed before.
        since_s = self._links.wiring.changed_s(node, peer)
        if loop.time() < since_s + self._delay_s():
            self.reachable = not self._works
            self._timer = loop.at(since_s + self._delay_s(), self._notice, background=True)

    @property
    def may_wake(self) -> bool:
        """Whether a task waits for a change that may yet come."""
        if not self.waiting:
            return False
        may_change = self._links.wiring.may_close if self.reachable else self._links.wiring.may_open
        return self._timer is not None or may_change(self.node, self.peer)

    def _delay_s(self) -> float:
        return self._round_trip_s if self._works else notice_s(self._round_trip_s)

    def look(self) -> None:
        """Called when a link has changed: the node notices the effect after a delay."""
        works = self._links.wiring.works(self.node, self.peer)
        if works == self._works:
            return
        self._works = works
        if works:
            self._round_trip_s = self._links.round_trip_s(self.node, self.peer) or 0.0
        if self._timer:
            self._timer.cancel()
            self._timer = None
        if works != self.reachable:
            self._timer = self._loop.at(self._loop.time() + self._delay_s(), self._notice, background=True)

    def _notice(self) -> None:
        self._timer = None
        self.reachable = self._works
        self._noticed(ReachChanged(at=self._loop.time(), node=self.node, peer=self.peer, reachable=self.reachable))
        waiting, self.waiting = self.waiting, []
        for future in waiting:
            if not future.done():
                future.set_result(None)

    async def wait_until(self, *, reachable: bool) -> None:
        while self.reachable != reachable:
            future = self._loop.create_future()
            self.waiting.append(future)
            try:
                await future
            finally:
                if future in self.waiting:
                    self.waiting.remove(future)
