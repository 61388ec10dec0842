"""The switch: takes every packet that a node sends, and delivers or drops it as the network would.

A packet goes through pipes: its node's uplink, the links of its path, the other node's downlink.  Each pipe passes
bytes one after another at its current rate, drops packets that would wait for too long, and then adds its latency.
Weather comes from `atoll.network.weather`: the same seed gives the same outages and rates as in a simulation.
"""

import heapq
import math
import os
import selectors
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass

from atoll.network import Link, Network
from atoll.seeds import stream
from atoll.trace import LinkChanged, Recorder
from atoll.world.emulate.namespaces import Tap, sharpen_timers
from atoll.world.faults import Fault
from atoll.world.sim.fair import Pipe
from atoll.world.sim.routes import Routes
from atoll.world.sim.wires import LinkEnd, LinkState

__all__ = ["Switch", "SwitchStats"]

QUEUE_S = 0.1
"""The longest time that a packet may wait before a link; others are dropped."""
LEAST_QUEUE_BYTES = 128 << 10
LATE_S = 0.001
JITTER_EVERY_S = 0.02
"""The interval at which latency is drawn again: since packets keep their order, a jitter for every packet would always
amount to the largest one.
"""
SEGMENT_HEADER_BYTES = 52
MOST_AT_ONCE = 32
MOST_PACKET_BYTES = 65_700


@dataclass(slots=True)
class SwitchStats:
    """The cost of the switch itself: do not trust a run in which it was late."""

    by: str = "tun"
    """How packets reached it: `tun`, `veth`, or `proxy` for bytes of streams."""
    delivered: int = 0
    late: int = 0
    latest_s: float = 0.0
    dropped_queue: int = 0
    dropped_down: int = 0
    dropped_loss: int = 0
    cpu_s: float = 0.0
    wall_s: float = 0.0

    @property
    def late_share(self) -> float:
        return self.late / max(self.delivered, 1)


class _Stage:
    """A pipe, with the switch's state of it."""

    __slots__ = ("drawn_at", "end", "free", "last", "latency", "pipe")

    def __init__(self, pipe: Pipe) -> None:
        self.pipe = pipe
        self.end = pipe if isinstance(pipe, LinkEnd) else None
        self.free = 0.0
        self.last = 0.0
        self.latency = 0.0
        self.drawn_at = -math.inf


class _Packet:
    """A packet on its way."""

    __slots__ = ("data", "path", "receiver", "sender", "size", "stage")

    def __init__(self, data: bytes, size: int, sender: str, receiver: str, path: list[_Stage]) -> None:
        self.data = data
        self.size = size
        """Bytes on the wire."""
        self.sender = sender
        self.receiver = receiver
        self.path = path
        self.stage = 0
        """The index of the next pipe."""

    def again(self) -> "_Packet":
        return _Packet(self.data, self.size, self.sender, self.receiver, self.path)


class Switch:
    """All links of an emulated network."""

    def __init__(self, network: Network, taps: dict[str, Tap], *, seed: int, trace: Recorder) -> None:
        self._network = network
        self._taps = taps
        self._trace = trace
        self._names = list(taps)
        self._place = {tap.device: name for name, tap in taps.items()}
        self._devices = [tap.device for tap in taps.values()]
        self._header = next((tap.header_bytes for tap in taps.values()), 0)
        self._segments = any(tap.segments for tap in taps.values())
        self._states = {link.name: LinkState(link, seed, network.run_s) for link in network.links}
        self._stages: dict[Pipe, _Stage] = {}
        self._up = {node.name: Pipe("up", node.up_bps / 8) for node in network.nodes if node.up_bps < math.inf}
        self._down = {node.name: Pipe("down", node.down_bps / 8) for node in network.nodes if node.down_bps < math.inf}
        self._routes = Routes(network, lambda link: self._states[link.name].up, self._latency_of)
        self._paths: dict[tuple[str, str], list[_Stage] | None] = {}
        self._heap: list[tuple[float, int, _Packet]] = []
        self._sequence = 0
        self._timers: list[tuple[float, int, Callable[[], None]]] = []
        self._blocked: Counter[tuple[str, str]] = Counter()
        self._unruly: list[Fault] = []
        self._draw = stream(seed, "unruly packets")
        self._begin_at = math.inf
        self._files: dict[int, Callable[[], None]] = {}
        self._selector = selectors.DefaultSelector()
        for device in self._devices:
            self._selector.register(device, selectors.EVENT_READ)
        self._is_over = False
        self.stats = SwitchStats()

    # Calls from outside ---

    @property
    def now(self) -> float:
        """Seconds since the run began; weather begins with it."""
        return time.monotonic() - self._begin_at

    def begin(self, begin_at: float) -> None:
        """Starts the weather."""
        self._begin_at = begin_at
        for state in self._states.values():
            self._schedule_weather(state)

    def at(self, seconds: float, do: Callable[[], None]) -> None:
        """Calls `do` this many seconds after the run's beginning."""
        self._sequence += 1
        heapq.heappush(self._timers, (self._begin_at + seconds, self._sequence, do))

    def after(self, seconds: float, do: Callable[[], None]) -> None:
        """Calls `do` in this many seconds."""
        self._sequence += 1
        heapq.heappush(self._timers, (time.monotonic() + seconds, self._sequence, do))

    def watch(self, file: int, do: Callable[[], None]) -> None:
        """Calls `do` whenever a file can be read."""
        if file not in self._files:
            self._selector.register(file, selectors.EVENT_READ)
        self._files[file] = do

    def forget(self, file: int) -> None:
        if self._files.pop(file, None):
            self._selector.unregister(file)

    def block(self, fault: Fault, *, on: bool) -> None:
        """Blocks all packets between the pairs of a fault, or unblocks them."""
        for pair in fault.pairs:
            self._blocked[pair] += 1 if on else -1

    def disturb(self, fault: Fault, *, on: bool) -> None:
        """Begins or ends a fault that corrupts, delays or duplicates packets."""
        if on:
            self._unruly.append(fault)
        else:
            self._unruly.remove(fault)

    def stop(self) -> None:
        self._is_over = True

    # Weather ---

    def _schedule_weather(self, state: LinkState) -> None:
        if state.next_change:
            self.at(state.next_change[0], lambda: self._turn(state))

    def _turn(self, state: LinkState) -> None:
        assert state.next_change is not None
        state.up = state.next_change[1]
        state.next_change = next(state.schedule, None)
        self._schedule_weather(state)
        self._routes.forget()
        self._paths.clear()
        self._trace.record(LinkChanged(at=self.now, link=state.link.name, up=state.up))

    def _latency_of(self, link: Link, forward: bool) -> float:  # noqa: FBT001 - the shape that routes ask for
        state = self._states[link.name]
        return (state.there if forward else state.back).latency_s(max(self.now, 0.0))

    # Packets ---

    def _path(self, sender: str, receiver: str) -> list[_Stage] | None:
        key = sender, receiver
        if key not in self._paths:
            steps = self._routes.find(sender, receiver)
            pipes: list[Pipe] = []
            if sender in self._up:
                pipes.append(self._up[sender])
            for link, forward in steps or ():
                state = self._states[link.name]
                pipes.append(state.there if forward else state.back)
            if receiver in self._down:
                pipes.append(self._down[receiver])
            self._paths[key] = [self._stage(pipe) for pipe in pipes] if steps is not None else None
        return self._paths[key]

    def _stage(self, pipe: Pipe) -> _Stage:
        if pipe not in self._stages:
            self._stages[pipe] = _Stage(pipe)
        return self._stages[pipe]

    def run(self) -> None:
        """Switches packets until `stop` is called."""
        sharpen_timers()
        began, cpu = time.monotonic(), time.process_time()
        while not self._is_over:
            self._deliver_due()
            now = time.monotonic()
            while self._timers and self._timers[0][0] <= now:
                heapq.heappop(self._timers)[2]()
            due = min(self._heap[0][0] if self._heap else math.inf, self._timers[0][0] if self._timers else math.inf)
            wait = None if due == math.inf else max(0.0, due - time.monotonic())
            for key, _ in self._selector.select(wait):
                file = key.fd
                if file in self._place:
                    self._take_in(file)
                elif file in self._files:
                    self._files[file]()
        self._selector.close()
        self.stats.wall_s, self.stats.cpu_s = time.monotonic() - began, time.process_time() - cpu

    def _deliver_due(self) -> None:
        heap, stats = self._heap, self.stats
        now = time.monotonic()
        while heap and heap[0][0] <= now:
            due, _, packet = heapq.heappop(heap)
            if packet.stage < len(packet.path):
                self._enter(due, packet)
                continue
            try:
                os.write(self._taps[packet.receiver].device, packet.data)
            except OSError:
                stats.dropped_queue += 1
            stats.delivered += 1
            late = now - due
            if late > LATE_S:
                stats.late += 1
                stats.latest_s = max(stats.latest_s, late)

    def _take_in(self, device: int) -> None:
        sender, offset = self._place[device], self._header
        for _ in range(MOST_AT_ONCE):
            try:
                data = os.read(device, MOST_PACKET_BYTES)
            except BlockingIOError:
                return
            if len(data) < offset + 20 or data[offset] >> 4 != 4:
                continue
            place = data[offset + 18] * 250 + data[offset + 19] - 1
            if place >= len(self._names):
                continue
            receiver = self._names[place]
            path = self._path(sender, receiver) if receiver != sender else None
            if path is None or self._blocked.get((sender, receiver), 0) > 0:
                self.stats.dropped_down += 1
                continue
            size = len(data) - offset
            segment = data[4] | data[5] << 8 if self._segments else 0
            if segment:  # many segments at once: each has its headers on the wire
                size += (max(0, size - SEGMENT_HEADER_BYTES - 1) // segment) * SEGMENT_HEADER_BYTES
            packet = _Packet(data, size, sender, receiver, path)
            if self._unruly:
                self._send_unruly(time.monotonic(), packet)
            else:
                self._enter(time.monotonic(), packet)

    def _send_unruly(self, now: float, packet: _Packet) -> None:
        """Applies message faults to a packet: TCP drops corrupt or duplicate packets, and waits for late ones."""
        late_s = 0.0
        for fault in self._unruly:
            if (packet.sender, packet.receiver) not in fault.pairs or self._draw.random() >= fault.share:
                continue
            if fault.kind == "corrupt":
                self.stats.dropped_loss += 1
                return
            if fault.kind == "delay":
                late_s += self._draw.uniform(0.0, fault.seconds)
            else:
                self._enter(now, packet.again())
        if late_s:
            self._push(now + late_s, packet)
        else:
            self._enter(now, packet)

    def journey(self, sender: str, receiver: str, size: float) -> float | None:
        """When bytes of a stream that leave now arrive; `None` if there is no path now, or its queue is full."""
        path, now = self._path(sender, receiver), time.monotonic()
        if path is None or self._blocked.get((sender, receiver), 0) > 0:
            return None
        run_s = max(now - self._begin_at, 0.0)
        for stage in path:
            if stage.end is not None and stage.end.next_change_s is not None and stage.end.next_change_s <= run_s:
                stage.end.advance(run_s)
            if stage.pipe.capacity <= 0 or stage.free - now > QUEUE_S:
                return None
        due = now
        for stage in path:
            due = stage.free = max(stage.free, due) + size / stage.pipe.capacity
            if stage.end is not None:
                due = stage.last = max(stage.last, due + stage.end.draw_latency_s(run_s, jitter=True))
        return due

    def _push(self, due: float, packet: _Packet) -> None:
        self._sequence += 1
        heapq.heappush(self._heap, (due, self._sequence, packet))

    def _enter(self, now: float, packet: _Packet) -> None:
        """A packet reaches a pipe."""
        stage = packet.path[packet.stage]
        end = stage.end
        run_s = now - self._begin_at
        if end is not None and end.next_change_s is not None and end.next_change_s <= run_s:
            end.advance(run_s)
        rate = stage.pipe.capacity
        if rate <= 0:
            self.stats.dropped_down += 1
            return
        waits = stage.free - now
        if waits > QUEUE_S and waits * rate > LEAST_QUEUE_BYTES:
            self.stats.dropped_queue += 1
            return
        stage.free = (stage.free if waits > 0 else now) + packet.size / rate
        due = stage.free
        if end is not None:
            if end.way.loss and end.is_lost(1):
                self.stats.dropped_loss += 1
                return
            if now - stage.drawn_at > JITTER_EVERY_S:
                stage.latency = end.draw_latency_s(max(run_s, 0.0), jitter=True)
                stage.drawn_at = now
            due = stage.last = max(stage.last, due + stage.latency)
        packet.stage += 1
        self._push(due, packet)
