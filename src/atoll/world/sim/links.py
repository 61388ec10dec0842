"""Simulated links: messages as flows through pipes, followed exactly from change to change.

A *connection* carries the messages from one node to another on one lane, in order, like a TCP connection.  While it
sends it is a flow of `atoll.world.sim.fair`, and its rate is constant between two changes near it; so the time at which
a message's last byte leaves is known, and is computed again only when the rate changes.  The message arrives one
latency later.

The life of a connection::

    idle ──offer──▶ sending ◀──a round trip after the window opened── paused (slow start: the window is used up)
      ▲                │ │
      └─nothing left───┘ └──a link of the path fails──▶ stranded ──a path works again, plus a round trip──▶ sending

When a path fails, the bytes in flight (those sent within the last latency) are lost and sent again.  They may belong to
messages that were fully sent already.

All changes at one instant are gathered, and the rates are computed once, at the end of the instant.
"""

import math
from collections.abc import Callable, Iterable

from atoll.network import Link, Network
from atoll.trace import Event, LinkChanged
from atoll.world.sim.connection import Connection, Transfer
from atoll.world.sim.finishes import Finishes
from atoll.world.sim.loop import VirtualLoop
from atoll.world.sim.physics import INITIAL_WINDOW_BYTES, SEGMENT_BYTES, Physics, idle_window, loss_limit
from atoll.world.sim.rates import Rates
from atoll.world.sim.wires import LinkState
from atoll.world.sim.wiring import Wiring

__all__ = ["Links"]


class Links:
    """All links of a simulated network, and all messages on them."""

    def __init__(
        self, network: Network, loop: VirtualLoop, *, seed: int, physics: Physics, record: Callable[[Event], None]
    ) -> None:
        self._loop = loop
        self._physics = physics
        self._record = record
        self.wiring = Wiring(network, loop.time, seed=seed)
        self.routes = self.wiring.routes
        self._busy: dict[Connection, None] = {}  # connections that are not idle, or have messages in flight
        self._stranded: dict[Connection, None] = {}
        self._finishes = Finishes(loop, self._piece_sent)
        self._rates = Rates(loop, self._finishes)
        self.on_change: list[Callable[[Link], None]] = []
        """Called when a link has gone down or come back."""
        self._initial_window = physics.wire_bytes(INITIAL_WINDOW_BYTES)

    def begin(self) -> None:
        """Starts the weather."""
        for state in self.wiring.states.values():
            while state.next_change and state.next_change[0] <= 0:
                up = state.next_change[1]
                state.next_change = next(state.schedule, None)
                self.set_up(state.link.name, up=up)
            if state.next_change:
                self._loop.at(state.next_change[0], self._turn, state, background=True)
        for time in self.wiring.phase_starts_s:  # latencies change, and so does the shortest path
            self._loop.at(time, self.routes.forget, background=True)

    # Calls from nodes ---

    def offer(self, connection: Connection, transfer: Transfer) -> None:
        """Gives a message to a connection."""
        connection.queue.append(transfer)
        if connection.state == "idle":
            self._busy[connection] = None
            self._begin(connection)

    def take_back(self, connection: Connection, transfer: Transfer) -> None:
        """Removes a message that was not fully sent, in any state of the connection."""
        if transfer not in connection.queue:
            return
        first = connection.queue[0] is transfer
        connection.queue.remove(transfer)
        if first and connection.state == "sending":
            self._rates.progress(connection)
            self._next(connection)
        elif first and connection.state == "paused" and not connection.queue:
            self._rest(connection)
        elif not connection.queue and connection.state == "stranded":
            self._stranded.pop(connection, None)
            self._rest(connection)

    def round_trip_s(self, sender: str, receiver: str) -> float | None:
        """The round trip of the path between two nodes now, if there is one."""
        path = self.wiring.path(sender, receiver)
        return path.round_trip_s(self._loop.time()) if path else None

    # Calls from the simulation ---

    @property
    def stranded(self) -> list[Connection]:
        """Connections that have something to send and no path."""
        return list(self._stranded)

    @property
    def busy(self) -> list[Connection]:
        return list(self._busy)

    @property
    def carried_bytes(self) -> float:
        """All bytes that were put on the wire, including lost ones that were sent again."""
        return self._rates.carried_bytes

    def waits_for_weather(self) -> bool:
        """Whether a connection that is held up may yet resume by itself."""
        return any(self.wiring.may_open(each.sender, each.receiver) for each in self._stranded) or any(
            each.state == "sending"
            and each.finish_s == math.inf
            and each.path
            and any(end.next_change_s is not None for end in each.path.changing)
            for each in self._busy
        )

    # The life of a connection ---

    def _begin(self, connection: Connection) -> None:
        """Begins to send the first message of the queue, on a connection that is not sending."""
        path = connection.path
        # A path is chosen when a message starts and when the last one broke.
        if path is None or (path.version != self.routes.version and connection.queue[0].is_fresh):
            connection.path = path = self.wiring.path(connection.sender, connection.receiver)
        if path is None:
            self._strand(connection)
            return
        now = self._loop.time()
        connection.pipes = path.pipes
        for end in path.changing:
            if not self._rates.follows(end):
                end.advance(now)
        connection.round_trip_s = round_trip_s = path.round_trip_s(now)
        if now < connection.ready_s(path, self._loop.time()) - 1e-9:
            self._strand(connection)  # the transport is still connecting
            return
        if self._physics.slow_start and path.pipes and round_trip_s > 0:
            idle_s = now - connection.idle_since_s
            connection.window = max(idle_window(connection.window, idle_s, round_trip_s), self._initial_window)
            if now < connection.round_s + round_trip_s:  # still in the round trip that the window was opened for
                if connection.quota <= 0:
                    self._pause(connection)
                    return
            else:
                connection.open_window(now)
        else:
            connection.quota = math.inf
        self._send(connection)

    def _cap(self, connection: Connection) -> float:
        """The rate limit that loss sets for the first message; none for one that fits the initial window."""
        path = connection.path
        if not self._physics.loss or not path or not path.loss or self._is_short(connection.queue[0]):
            return math.inf
        return loss_limit(path.loss, connection.round_trip_s) * self._physics.wire_bytes(1)

    def _is_short(self, transfer: Transfer) -> bool:
        return transfer.wire_bytes <= self._initial_window

    def _send(self, connection: Connection) -> None:
        """Joins the flows, with the next piece to send."""
        now = self._loop.time()
        transfer = connection.queue[0]
        if math.isnan(transfer.began_s):
            transfer.began_s = now
        connection.segment = min(transfer.left, connection.quota)
        connection.cap = self._cap(connection)
        connection.since_s = now
        connection.state = "sending"
        connection.mark(now)
        if connection.pipes:
            connection.rate = 0.0
            connection.finish_s = math.inf
            connection.join()
            for end in connection.path.changing if connection.path else ():
                self._rates.follow(end)
            self._rates.joined(connection)
        elif connection.cap < math.inf:
            connection.rate = connection.cap
            self._finishes.set(connection, now + connection.segment / connection.cap)
        else:
            self._send_at_once(connection, now)

    def _send_at_once(self, connection: Connection, now: float) -> None:
        """Sends all queued messages now: nothing limits the rate."""
        connection.finish_s = connection.wake_s = math.inf
        while connection.queue and self._cap(connection) == math.inf:
            transfer = connection.queue.pop(0)
            if math.isnan(transfer.began_s):
                transfer.began_s = now
            connection.sent_bytes += transfer.left
            self._rates.carried_bytes += transfer.left
            transfer.left = 0.0
            self._depart(connection, transfer, now)
        connection.mark(now)
        if connection.queue:
            self._send(connection)
        else:
            self._rest(connection)

    def _piece_sent(self, connection: Connection) -> None:
        """Called when the last byte of a piece has left."""
        now = self._loop.time()
        transfer = connection.queue[0]
        transfer.left -= connection.segment
        connection.quota -= connection.segment
        connection.sent_bytes += connection.segment
        self._rates.carried_bytes += connection.segment
        connection.segment = 0.0
        connection.since_s = now
        connection.mark(now)
        if transfer.left <= 1e-6:
            connection.queue.pop(0)
            self._depart(connection, transfer, now)
        self._next(connection)

    def _next(self, connection: Connection) -> None:
        """Continues after a piece: with the next one, with a pause, or by becoming idle."""
        now = self._loop.time()
        if not connection.queue:
            self._withdraw(connection)
            self._rest(connection)
        elif connection.path and connection.path.version != self.routes.version and connection.queue[0].is_fresh:
            self._withdraw(connection)
            self._begin(connection)
        elif connection.quota <= 0 and now < connection.round_s + connection.round_trip_s * (1 - 1e-9):
            self._withdraw(connection)
            self._pause(connection)
        else:
            if connection.quota <= 0:
                connection.open_window(now)
            if not connection.pipes:
                self._send(connection)
                return
            transfer = connection.queue[0]  # it stays among the flows, at its current rate
            if math.isnan(transfer.began_s):
                transfer.began_s = now
            connection.segment = min(transfer.left, connection.quota)
            connection.since_s = now
            cap = self._cap(connection)
            if cap != connection.cap:
                connection.cap = cap
                self._rates.joined(connection)
            rate = connection.rate
            self._finishes.set(connection, now + connection.segment / rate if rate > 0 else math.inf)

    def _withdraw(self, connection: Connection) -> None:
        """Leaves the flows."""
        if connection.pipes and connection in connection.pipes[0].flows:
            connection.leave()
            self._rates.left(connection)
        connection.finish_s = connection.wake_s = math.inf
        connection.idle_since_s = self._loop.time()

    def _rest(self, connection: Connection) -> None:
        if connection.timer:
            connection.timer.cancel()
            connection.timer = None
        connection.state = "idle"
        connection.idle_since_s = self._loop.time()
        if not connection.flying:
            self._retire(connection)

    def _retire(self, connection: Connection) -> None:
        """Forgets a connection that is idle with nothing in flight; there may be very many, so they keep little."""
        self._busy.pop(connection, None)
        connection.marks = []

    def _pause(self, connection: Connection) -> None:
        connection.state = "paused"
        connection.timer = self._loop.at(connection.round_s + connection.round_trip_s, self._resume, connection)

    def _resume(self, connection: Connection) -> None:
        """Sends again after a pause, or a round trip after a path works again."""
        connection.timer = None
        self._stranded.pop(connection, None)
        connection.idle_since_s = self._loop.time()
        self._begin(connection)

    def _depart(self, connection: Connection, transfer: Transfer, now: float) -> None:
        path = connection.path
        assert path is not None
        latency = 0.0
        for end in path.ends:
            latency += end.draw_latency_s(now, jitter=self._physics.jitter)
        if path.loss and self._physics.loss and self._is_short(transfer):
            packets = math.ceil(transfer.wire_bytes / self._physics.wire_bytes(SEGMENT_BYTES))
            if any([end.way.loss and end.is_lost(packets) for end in path.ends]):  # noqa: C419 - every stream draws
                latency += connection.round_trip_s
        arrival_s = max(now + latency, connection.last_arrival_s)
        connection.last_arrival_s = arrival_s
        connection.flying.append(transfer)
        transfer.path = path
        transfer.arrival = self._loop.at(arrival_s, self._arrive, connection, transfer)
        if not transfer.sent.done():
            transfer.sent.set_result(None)

    def _arrive(self, connection: Connection, transfer: Transfer) -> None:
        first = connection.flying.pop(0)
        assert first is transfer, "messages of a connection arrive in order"
        transfer.arrival = (
            None  # it refers to the transfer: a cycle would keep the message until the next garbage collection
        )
        if not connection.flying and connection.state == "idle":
            self._retire(connection)
        transfer.deliver(transfer)

    # Weather ---

    def _turn(self, state: LinkState) -> None:
        """Takes a link down or brings it back, and schedules the next such change."""
        assert state.next_change is not None
        up = state.next_change[1]
        state.next_change = next(state.schedule, None)
        if state.next_change:
            self._loop.at(state.next_change[0], self._turn, state, background=True)
        self.set_up(state.link.name, up=up)

    def set_up(self, link_name: str, *, up: bool) -> None:
        """Takes a link down or brings it back."""
        state = self.wiring.states[link_name]
        if state.up == up:
            return
        now = self._loop.time()
        state.up = up
        state.changed_s = now
        self.routes.forget()
        self._record(LinkChanged(at=now, link=link_name, up=up))
        if up:
            state.there.up_since_s = state.back.up_since_s = now
            for connection in list(self._stranded):
                self._find_way(connection)
        else:
            gone = {state.there, state.back}
            for connection in [each for each in self._busy if each.goes_through(gone)]:
                self._cut(connection)
        for callback in self.on_change:
            callback(state.link)

    def block(self, pairs: Iterable[tuple[str, str]], *, on: bool) -> None:
        """Blocks all messages from one node to another, whatever links there are, or unblocks them."""
        changed = set()
        for pair in pairs:
            before = self.wiring.blocked[pair] > 0
            self.wiring.blocked[pair] += 1 if on else -1
            if (self.wiring.blocked[pair] > 0) != before:
                changed.add(pair)
        self.routes.forget()  # cached paths are searched again
        for connection in list(self._busy):
            if (connection.sender, connection.receiver) in changed:
                if on:
                    self._cut(connection)
                elif connection in self._stranded:
                    connection.broken_s = self._loop.time()
                    self._find_way(connection)

    def _cut(self, connection: Connection) -> None:
        """A path has failed: bytes in flight on it are lost, and at least the last packet has to be sent again.

        A connection that waits for a path has nothing in flight, but a fault may block it all the same.
        """
        now = self._loop.time()
        if connection.state == "sending":
            self._rates.progress(connection)
            connection.mark(now)
        lost = connection.under_way(now)
        self._withdraw(connection)
        if connection.timer:
            connection.timer.cancel()
            connection.timer = None
        connection.send_again(lost, self._physics.wire_bytes(SEGMENT_BYTES))
        connection.last_arrival_s = connection.broken_s = now
        if connection.queue:
            self._strand(connection)
        elif connection.state != "idle":
            self._rest(connection)

    def _strand(self, connection: Connection) -> None:
        connection.state = "stranded"
        connection.path = None
        connection.window = self._initial_window
        connection.quota = math.inf
        connection.round_s = -math.inf
        self._stranded[connection] = None
        self._find_way(connection)

    def _find_way(self, connection: Connection) -> None:
        """Resumes sending once the transport has reconnected, if there is a path."""
        if connection.timer is None:
            path = self.wiring.path(connection.sender, connection.receiver)
            if path:
                connection.path = path  # so that a failure before then is noticed
                ready_s = max(connection.ready_s(path, self._loop.time()), self._loop.time())
                connection.timer = self._loop.at(ready_s, self._resume, connection)
