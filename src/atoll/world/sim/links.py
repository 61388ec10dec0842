"""Simulated links: messages as flows through pipes, followed exactly from change to change.

A *connection* carries what one node sends another on one lane, message after message, like a TCP connection.  While it
sends it is a flow of `atoll.world.sim.fair`, and its rate is constant between two changes anywhere near it; so the time
at which a message's last byte leaves is known, and is computed anew only when the rate changes.  The message arrives
one latency later.

The life of a connection::

    idle ──offer──▶ sending ◀──a round trip after the window opened── paused (slow start: the window is used up)
      ▲                │ │
      └─nothing left───┘ └──a link of the path fails──▶ stranded ──a path works again, plus a round trip──▶ sending

When a path fails, the bytes that were under way (those sent within the last latency) are lost and sent again.  They may
belong to messages that had left already.

All that changes at one instant is gathered, and the rates are worked out once, at the instant's end.
"""

import math
from collections import Counter
from collections.abc import Callable, Iterable, Iterator

from atoll.network import Link, Network
from atoll.trace import Event, LinkChanged
from atoll.world.sim.connection import Connection, Transfer
from atoll.world.sim.fair import Pipe, rebalance
from atoll.world.sim.finishes import Finishes
from atoll.world.sim.loop import VirtualLoop
from atoll.world.sim.physics import INITIAL_WINDOW_BYTES, SEGMENT_BYTES, Physics, idle_window, loss_limit
from atoll.world.sim.routes import Routes
from atoll.world.sim.wires import LinkEnd, LinkState, Path

__all__ = ["Links"]


class Links:
    """All links of a simulated network, and all that travels on them."""

    def __init__(
        self, network: Network, loop: VirtualLoop, *, seed: int, physics: Physics, record: Callable[[Event], None]
    ) -> None:
        self._loop = loop
        self._physics = physics
        self._record = record
        self._states = {link.name: LinkState(link, seed, network.run_s) for link in network.links}
        self._up = {
            node.name: Pipe(f"{node.name} up", node.up_bps / 8) for node in network.nodes if node.up_bps < math.inf
        }
        self._down = {
            node.name: Pipe(f"{node.name} down", node.down_bps / 8)
            for node in network.nodes
            if node.down_bps < math.inf
        }
        self.routes = Routes(network, lambda link: self._states[link.name].up, self._latency_of)
        self._busy: dict[Connection, None] = {}  # everything that is not idle, or has messages in the air
        self._stranded: dict[Connection, None] = {}
        self._finishes = Finishes(loop, self._piece_sent)
        self._left: dict[Pipe, None] = {}
        self._resized: dict[Pipe, None] = {}
        self._joined: dict[Connection, None] = {}
        self._settling = False
        self._watched: set[LinkEnd] = set()
        self.carried_bytes = 0.0
        """What has been put on the wire, what was lost and sent again included."""
        self.on_change: list[Callable[[Link], None]] = []
        """Called when a link has gone down or come back."""
        self._initial_window = physics.wire_bytes(INITIAL_WINDOW_BYTES)
        self._phase_starts_s = _phase_starts_s(network)
        self._blocked: Counter[tuple[str, str]] = Counter()  # by how many faults
        self.faults_to_come = 0
        """How many faults are still to begin or to end."""

    def begin(self) -> None:
        """Lets the weather begin."""
        for state in self._states.values():
            while state.next_change and state.next_change[0] <= 0:
                up = state.next_change[1]
                state.next_change = next(state.schedule, None)
                self.set_up(state.link.name, up=up)
            if state.next_change:
                self._loop.at(state.next_change[0], self._turn, state, background=True)
        for time in self._phase_starts_s:  # latencies change, and with them which path is the shortest
            self._loop.at(time, self.routes.forget, background=True)

    # What nodes do ---

    def offer(self, connection: Connection, transfer: Transfer) -> None:
        """Gives a message to a connection."""
        connection.queue.append(transfer)
        if connection.state == "idle":
            self._busy[connection] = None
            self._begin(connection)

    def take_back(self, connection: Connection, transfer: Transfer) -> None:
        """Removes a message that has not left, whatever has become of it."""
        if transfer not in connection.queue:
            return
        first = connection.queue[0] is transfer
        connection.queue.remove(transfer)
        if first and connection.state == "sending":
            self._progress(connection)
            self._next(connection)
        elif first and connection.state == "paused" and not connection.queue:
            self._rest(connection)
        elif not connection.queue and connection.state == "stranded":
            self._stranded.pop(connection, None)
            self._rest(connection)

    def round_trip_s(self, sender: str, receiver: str) -> float | None:
        """The round trip of the path between two nodes now, if there is one."""
        path = self._path(sender, receiver)
        return path.round_trip_s(self._loop.time()) if path else None

    # What the simulation asks ---

    @property
    def stranded(self) -> list[Connection]:
        """Connections that have something to send and no way."""
        return list(self._stranded)

    @property
    def busy(self) -> list[Connection]:
        return list(self._busy)

    def pipes(self) -> Iterator[Pipe]:
        """Everything with a capacity."""
        yield from (end for state in self._states.values() for end in (state.there, state.back))
        yield from self._up.values()
        yield from self._down.values()

    def waits_for_weather(self) -> bool:
        """Whether something that is held up may yet go on by itself."""
        return any(self.may_open(each.sender, each.receiver) for each in self._stranded) or any(
            each.state == "sending"
            and each.finish_s == math.inf
            and each.path
            and any(end.next_change_s is not None for end in each.path.changing)
            for each in self._busy
        )

    def may_open(self, sender: str, receiver: str) -> bool:
        """Whether a way from one node to another is there or may yet open."""
        if self._blocked[sender, receiver]:
            return self.faults_to_come > 0
        return self.routes.are_joined(sender, receiver, self._up_or_may_be)

    def may_close(self, sender: str, receiver: str) -> bool:
        """Whether the way from one node to another is gone or may yet close."""
        return not self.routes.are_joined(sender, receiver, self._is_up_for_good)

    def _up_or_may_be(self, link: Link) -> bool:
        state = self._states[link.name]
        return state.up or state.next_change is not None

    def _is_up_for_good(self, link: Link) -> bool:
        state = self._states[link.name]
        return state.up and state.next_change is None

    def may_change(self) -> bool:
        """Whether any link may yet go down or come back."""
        return any(state.next_change is not None for state in self._states.values())

    def changed_s(self, sender: str, receiver: str) -> float:
        """When the way from one node to another may last have changed."""
        own = self.routes.own_link(sender, receiver)
        states = [self._states[own.name]] if own else self._states.values()
        return max((state.changed_s for state in states), default=-math.inf)

    # The course of a connection ---

    def _begin(self, connection: Connection) -> None:
        """The first message of the queue is to be sent, from a connection that is not sending."""
        path = connection.path
        # A path is chosen when a message starts and when the last one broke.
        if path is None or (path.version != self.routes.version and _is_fresh(connection.queue[0])):
            connection.path = path = self._path(connection.sender, connection.receiver)
        if path is None:
            self._strand(connection)
            return
        now = self._loop.time()
        connection.pipes = path.pipes
        for end in path.changing:
            if end not in self._watched:
                end.advance(now)
        connection.round_trip_s = round_trip_s = path.round_trip_s(now)
        if now < self._ready_s(connection, path) - 1e-9:
            self._strand(connection)  # the transport is still dialling
            return
        if self._physics.slow_start and path.pipes and round_trip_s > 0:
            idle_s = now - connection.idle_since_s
            connection.window = max(idle_window(connection.window, idle_s, round_trip_s), self._initial_window)
            if now < connection.round_s + round_trip_s:  # still in the round trip that the window was opened for
                if connection.quota <= 0:
                    self._pause(connection)
                    return
            else:
                self._open_window(connection, now)
        else:
            connection.quota = math.inf
        self._send(connection)

    def _cap(self, connection: Connection) -> float:
        """What loss leaves of the rate for the first message: no limit on one that fits the initial window."""
        path = connection.path
        if not self._physics.loss or not path or not path.loss or self._is_short(connection.queue[0]):
            return math.inf
        return loss_limit(path.loss, connection.round_trip_s) * self._physics.wire_bytes(1)

    def _is_short(self, transfer: Transfer) -> bool:
        return transfer.wire_bytes <= self._initial_window

    def _open_window(self, connection: Connection, now: float) -> None:
        if connection.quota <= 0:
            connection.window *= 2
        connection.round_s = now
        connection.quota = connection.window
        if connection.path and connection.window > 2 * connection.path.peak * connection.round_trip_s:
            connection.quota = math.inf  # no rate that this path ever has can use it up in a round trip

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
                self._watch(end)
            self._joined[connection] = None
            self._settle_later()
        elif connection.cap < math.inf:
            connection.rate = connection.cap
            self._finishes.set(connection, now + connection.segment / connection.cap)
        else:
            self._send_at_once(connection, now)

    def _send_at_once(self, connection: Connection, now: float) -> None:
        """Nothing limits the rate: what is queued leaves now."""
        connection.finish_s = connection.wake_s = math.inf
        while connection.queue and self._cap(connection) == math.inf:
            transfer = connection.queue.pop(0)
            if math.isnan(transfer.began_s):
                transfer.began_s = now
            connection.sent_bytes += transfer.left
            self.carried_bytes += transfer.left
            transfer.left = 0.0
            self._depart(connection, transfer, now)
        connection.mark(now)
        if connection.queue:
            self._send(connection)
        else:
            self._rest(connection)

    def _piece_sent(self, connection: Connection) -> None:
        """The piece's last byte has left."""
        now = self._loop.time()
        transfer = connection.queue[0]
        transfer.left -= connection.segment
        connection.quota -= connection.segment
        connection.sent_bytes += connection.segment
        self.carried_bytes += connection.segment
        connection.segment = 0.0
        connection.since_s = now
        connection.mark(now)
        if transfer.left <= 1e-6:
            connection.queue.pop(0)
            self._depart(connection, transfer, now)
        self._next(connection)

    def _next(self, connection: Connection) -> None:
        """Goes on after a piece: with the next one, with a pause, or with a rest."""
        now = self._loop.time()
        if not connection.queue:
            self._withdraw(connection)
            self._rest(connection)
        elif connection.path and connection.path.version != self.routes.version and _is_fresh(connection.queue[0]):
            self._withdraw(connection)
            self._begin(connection)
        elif connection.quota <= 0 and now < connection.round_s + connection.round_trip_s * (1 - 1e-9):
            self._withdraw(connection)
            self._pause(connection)
        else:
            if connection.quota <= 0:
                self._open_window(connection, now)
            if not connection.pipes:
                self._send(connection)
                return
            transfer = connection.queue[0]  # in the place it has among the flows, at the rate it has
            if math.isnan(transfer.began_s):
                transfer.began_s = now
            connection.segment = min(transfer.left, connection.quota)
            connection.since_s = now
            cap = self._cap(connection)
            if cap != connection.cap:
                connection.cap = cap
                self._joined[connection] = None
                self._settle_later()
            rate = connection.rate
            self._finishes.set(connection, now + connection.segment / rate if rate > 0 else math.inf)

    def _withdraw(self, connection: Connection) -> None:
        """Leaves the flows."""
        if connection.pipes and connection in connection.pipes[0].flows:
            connection.leave()
            self._joined.pop(connection, None)
            for pipe in connection.pipes:
                self._left[pipe] = None
            self._settle_later()
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
        """It has nothing to do and nothing in the air; there may be very many such, so they keep little."""
        self._busy.pop(connection, None)
        connection.marks = []

    def _pause(self, connection: Connection) -> None:
        connection.state = "paused"
        connection.timer = self._loop.at(connection.round_s + connection.round_trip_s, self._resume, connection)

    def _resume(self, connection: Connection) -> None:
        """After a pause, or a round trip after a path works again."""
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
            None  # it knows the transfer: a circle that would keep the message until the next look for garbage
        )
        if not connection.flying and connection.state == "idle":
            self._retire(connection)
        transfer.deliver(transfer)

    # Rates ---

    def _settle_later(self) -> None:
        if not self._settling:
            self._settling = True
            self._loop.at_instants_end(self._settle)

    def _settle(self) -> None:
        """Works out the rates after all that has changed at this instant."""
        self._settling = False
        now = self._loop.time()
        for connection, old_rate in rebalance(self._left, self._resized, self._joined).items():
            rate = connection.rate
            if rate != old_rate or connection.finish_s == math.inf:
                self._progress(connection, old_rate)
                connection.mark(now)
                self._finishes.set(connection, now + connection.segment / rate if rate > 0 else math.inf)
        self._left.clear()
        self._resized.clear()
        self._joined.clear()

    def _progress(self, connection: Connection, rate: float | None = None) -> None:
        """Takes note of what was sent at a rate (the present one unless given) since it began."""
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

    def _watch(self, end: LinkEnd) -> None:
        """Lets the rate of a link end follow its weather for as long as something flows there."""
        if end not in self._watched:
            self._watched.add(end)
            self._follow(end)

    def _follow(self, end: LinkEnd) -> None:
        next_change_s = end.next_change_s
        if end.flows and next_change_s is not None:
            self._loop.at(next_change_s, self._change_rate, end, background=True)
        else:
            self._watched.discard(end)

    def _change_rate(self, end: LinkEnd) -> None:
        end.advance(self._loop.time())
        self._resized[end] = None
        self._settle_later()
        self._follow(end)

    # Weather ---

    def _latency_of(self, link: Link, forward: bool) -> float:  # noqa: FBT001 - the shape of a step
        state = self._states[link.name]
        return (state.there if forward else state.back).latency_s(self._loop.time())

    def works(self, sender: str, receiver: str) -> bool:
        """Whether there is a working path from one node to another."""
        return not self._blocked[sender, receiver] and self.routes.find(sender, receiver) is not None

    def _path(self, sender: str, receiver: str) -> Path | None:
        steps = self.routes.find(sender, receiver)
        if steps is None or self._blocked[sender, receiver]:
            return None
        states = [self._states[link.name] for link, _ in steps]
        ends = [state.there if forward else state.back for state, (_, forward) in zip(states, steps, strict=True)]
        reverse = [state.back if forward else state.there for state, (_, forward) in zip(states, steps, strict=True)]
        access = [pipe for pipe in (self._up.get(sender), self._down.get(receiver)) if pipe]
        return Path(ends, reverse, access, self.routes.version)

    def _turn(self, state: LinkState) -> None:
        """A link goes down or comes back, and the next such change is set."""
        assert state.next_change is not None
        up = state.next_change[1]
        state.next_change = next(state.schedule, None)
        if state.next_change:
            self._loop.at(state.next_change[0], self._turn, state, background=True)
        self.set_up(state.link.name, up=up)

    def set_up(self, link_name: str, *, up: bool) -> None:
        """Takes a link down or brings it back."""
        state = self._states[link_name]
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
            for connection in [each for each in self._busy if _goes_through(each, gone)]:
                self._cut(connection)
        for callback in self.on_change:
            callback(state.link)

    def block(self, pairs: Iterable[tuple[str, str]], *, on: bool) -> None:
        """Lets nothing through from one node to another, whatever links there are, or no longer so."""
        changed = set()
        for pair in pairs:
            before = self._blocked[pair] > 0
            self._blocked[pair] += 1 if on else -1
            if (self._blocked[pair] > 0) != before:
                changed.add(pair)
        self.routes.forget()  # paths that were found before are looked for again
        for connection in list(self._busy):
            if (connection.sender, connection.receiver) in changed:
                if on:
                    self._cut(connection)
                elif connection in self._stranded:
                    connection.broken_s = self._loop.time()
                    self._find_way(connection)

    def _cut(self, connection: Connection) -> None:
        """A path has failed: what was under way on it is lost, and its last packet at least has to be sent again.

        A connection that waits for a path has nothing under way: a fault may block it all the same.
        """
        now = self._loop.time()
        if connection.state == "sending":
            self._progress(connection)
            connection.mark(now)
        latest = connection.path or (connection.flying[-1].path if connection.flying else None)
        lost = connection.sent_bytes - connection.sent_by(now - latest.latency_s(now)) if latest else 0.0
        self._withdraw(connection)
        if connection.timer:
            connection.timer.cancel()
            connection.timer = None
        if connection.queue:
            lost -= self._unsend(connection.queue[0], lost)
        packet = self._physics.wire_bytes(SEGMENT_BYTES)
        for transfer in reversed(connection.flying):
            assert transfer.arrival is not None
            transfer.arrival.cancel()
            lost -= self._unsend(transfer, max(lost, packet))
        connection.queue[:0] = connection.flying
        connection.flying = []
        connection.marks = []
        connection.last_arrival_s = connection.broken_s = now
        if connection.queue:
            self._strand(connection)
        elif connection.state != "idle":
            self._rest(connection)

    @staticmethod
    def _unsend(transfer: Transfer, lost: float) -> float:
        """Takes back up to `lost` bytes of a message and returns how many it were."""
        taken = min(lost, transfer.wire_bytes - transfer.left)
        transfer.left += taken
        return taken

    def _strand(self, connection: Connection) -> None:
        connection.state = "stranded"
        connection.path = None
        connection.window = self._initial_window
        connection.quota = math.inf
        connection.round_s = -math.inf
        self._stranded[connection] = None
        self._find_way(connection)

    def _find_way(self, connection: Connection) -> None:
        """Sends again when the transport has dialled, if there is a path."""
        if connection.timer is None:
            path = self._path(connection.sender, connection.receiver)
            if path:
                connection.path = path  # so that its failing before then is noticed
                ready_s = max(self._ready_s(connection, path), self._loop.time())
                connection.timer = self._loop.at(ready_s, self._resume, connection)

    def _ready_s(self, connection: Connection, path: Path) -> float:
        """A round trip after the path has come to work, and after the last one broke."""
        now = self._loop.time()
        return max(path.ready_s(now), connection.broken_s + path.round_trip_s(now))


def _goes_through(connection: Connection, gone: set[LinkEnd]) -> bool:
    """Whether it sends, or has something in the air, over one of these."""
    paths = [connection.path, *(transfer.path for transfer in connection.flying)]
    return any(path and not gone.isdisjoint(path.ends) for path in paths)


def _is_fresh(transfer: Transfer) -> bool:
    """Whether nothing of it has been sent."""
    return transfer.left == transfer.wire_bytes


def _phase_starts_s(network: Network) -> list[float]:
    counts = {len(way.phases) for link in network.links for way in (link.there, link.back)} - {0}
    return sorted({index * (network.run_s or 0.0) / count for count in counts for index in range(1, count)})
