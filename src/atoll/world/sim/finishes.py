"""The times at which connections finish sending their pieces: one heap of times, and one timer for the first.

Rates change often, and these times with them.  A time that becomes later stays in the heap and is checked again when it
comes; only a time that becomes earlier is added again.  So most changes cost nothing.
"""

import heapq
import itertools
import math
from collections.abc import Callable

from atoll.world.sim.connection import Connection
from atoll.world.sim.loop import Timer, VirtualLoop

__all__ = ["Finishes"]


class Finishes:
    """Calls `finished` with each connection whose piece was sent."""

    def __init__(self, loop: VirtualLoop, finished: Callable[[Connection], None]) -> None:
        self._loop = loop
        self._finished = finished
        self._heap: list[tuple[float, int, Connection]] = []
        self._order = itertools.count()
        self._alarm: Timer | None = None
        self._alarm_s = math.inf
        self._purge_at = 1000

    def set(self, connection: Connection, finish_s: float) -> None:
        """Sets when the current piece of a connection will be sent; infinity: never."""
        connection.finish_s = finish_s
        if finish_s < connection.wake_s:
            connection.wake_s = finish_s
            heapq.heappush(self._heap, (finish_s, next(self._order), connection))
            if len(self._heap) > self._purge_at:
                self._purge()
            if finish_s < self._alarm_s:
                self._set_alarm(finish_s)

    def _purge(self) -> None:
        """Removes entries that were replaced or given up."""
        self._heap[:] = [entry for entry in self._heap if entry[0] == entry[2].wake_s]
        heapq.heapify(self._heap)
        self._purge_at = max(1000, 2 * len(self._heap))

    def _set_alarm(self, time: float) -> None:
        if self._alarm:
            self._alarm.cancel()
        self._alarm_s = time
        self._alarm = self._loop.at(time, self._ring)

    def _ring(self) -> None:
        """Handles all pieces that were sent by now."""
        now = self._loop.time()
        heap = self._heap
        self._alarm, self._alarm_s = None, math.inf
        while heap and heap[0][0] <= now:
            time, _, connection = heapq.heappop(heap)
            if time != connection.wake_s:
                continue  # replaced by an earlier one, or given up
            connection.wake_s = math.inf
            if connection.finish_s <= now:
                connection.finish_s = math.inf
                self._finished(connection)
            elif connection.finish_s < math.inf:
                self.set(connection, connection.finish_s)
        while heap and heap[0][0] != heap[0][2].wake_s:
            heapq.heappop(heap)
        if heap and heap[0][0] < self._alarm_s:
            self._set_alarm(heap[0][0])
