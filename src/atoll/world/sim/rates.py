"""The rates of all flows: changes at one instant are gathered, and rates are computed once, at its end."""

import math

from atoll.world.sim.connection import Connection
from atoll.world.sim.fair import Pipe, rebalance
from atoll.world.sim.finishes import Finishes
from atoll.world.sim.loop import VirtualLoop
from atoll.world.sim.wires import LinkEnd

__all__ = ["Rates"]


class Rates:
    """Keeps the rates of connections, and the time at which each finishes its piece.

    Args:
        loop: the simulation's event loop.
        finishes: gets the time at which a connection will finish.
    """

    def __init__(self, loop: VirtualLoop, finishes: Finishes) -> None:
        self._loop = loop
        self._finishes = finishes
        self._left: dict[Pipe, None] = {}
        self._resized: dict[Pipe, None] = {}
        self._joined: dict[Connection, None] = {}
        self._settling = False
        self._watched: set[LinkEnd] = set()
        self.carried_bytes = 0.0
        """All bytes that were put on the wire, including lost ones that were sent again."""

    def joined(self, connection: Connection) -> None:
        """A connection has joined the flows, or its own limit has changed."""
        self._joined[connection] = None
        self._settle_later()

    def left(self, connection: Connection) -> None:
        """A connection has left the flows."""
        self._joined.pop(connection, None)
        for pipe in connection.pipes:
            self._left[pipe] = None
        self._settle_later()

    def follows(self, end: LinkEnd) -> bool:
        """Whether the rate of a link end follows its weather."""
        return end in self._watched

    def _settle_later(self) -> None:
        if not self._settling:
            self._settling = True
            self._loop.at_instants_end(self._settle)

    def _settle(self) -> None:
        """Computes the rates after all changes at this instant."""
        self._settling = False
        now = self._loop.time()
        for connection, old_rate in rebalance(self._left, self._resized, self._joined).items():
            rate = connection.rate
            if rate != old_rate or connection.finish_s == math.inf:
                self.progress(connection, old_rate)
                connection.mark(now)
                self._finishes.set(connection, now + connection.segment / rate if rate > 0 else math.inf)
        self._left.clear()
        self._resized.clear()
        self._joined.clear()

    def progress(self, connection: Connection, rate: float | None = None) -> None:
        """Accounts for the bytes sent since the last call, at the current rate or the given one."""
        now = self._loop.time()
        sent = min((connection.rate if rate is None else rate) * (now - connection.since_s), connection.segment)
        connection.since_s = now
        if sent > 0:
            connection.segment -= sent
            connection.quota -= sent
            connection.sent_bytes += sent
            self.carried_bytes += sent
            if connection.queue:
                connection.queue[0].left -= sent

    def follow(self, end: LinkEnd) -> None:
        """Lets the rate of a link end follow its weather while it has flows."""
        if end not in self._watched:
            self._watched.add(end)
            self._wait(end)

    def _wait(self, end: LinkEnd) -> None:
        next_change_s = end.next_change_s
        if end.flows and next_change_s is not None:
            self._loop.at(next_change_s, self._change_rate, end, background=True)
        else:
            self._watched.discard(end)

    def _change_rate(self, end: LinkEnd) -> None:
        end.advance(self._loop.time())
        self._resized[end] = None
        self._settle_later()
        self._wait(end)
