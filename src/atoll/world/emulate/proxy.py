"""Links between nodes that share one loopback, for systems that do not allow network namespaces.

Every pair has a port of its own; bytes that pass through it take as long as on the links between the two nodes.  TCP
ends here on both sides: no packet is ever lost, a link that is down only holds bytes back, and TCP's own reaction to
bad links is not seen.  So outages are milder than real ones, and results say that they were measured with proxies.
"""

import socket
import time
from collections import deque
from contextlib import suppress

from atoll.world.emulate.switch import Switch
from atoll.world.live.keys import Address

__all__ = ["HOST", "Proxies", "free_ports"]

HOST = "127.0.0.1"
PIECE_BYTES = 16 << 10
WIRE_SHARE = 1500 / 1448
"""Bytes on the wire for each byte of a stream."""
AGAIN_S = 0.005
"""Bytes that cannot pass are tried again after this time."""


def free_ports(count: int) -> list[int]:
    """Ports that nobody listens on at this moment."""
    sockets = [socket.create_server((HOST, 0)) for _ in range(count)]
    ports = [int(sock.getsockname()[1]) for sock in sockets]
    for sock in sockets:
        sock.close()
    return ports


class Proxies:
    """A port for every pair of nodes.

    Args:
        switch: the switch that has the links.
        ports: the port where each node listens.
    """

    def __init__(self, switch: Switch, ports: dict[str, int]) -> None:
        self._switch = switch
        self._ports = ports
        self.addresses: dict[tuple[str, str], Address] = {}
        """The address at which the first node of a pair finds the second."""
        for one in ports:
            for other in ports:
                if one != other:
                    self._listen(one, other)

    def _listen(self, one: str, other: str) -> None:
        server = socket.create_server((HOST, 0), backlog=64)
        server.settimeout(0)
        self.addresses[one, other] = (HOST, server.getsockname()[1])
        self._switch.watch(server.fileno(), lambda: self._accept(server, one, other))

    def _accept(self, server: socket.socket, one: str, other: str) -> None:
        try:
            near, _ = server.accept()
        except OSError:
            return
        try:
            far = socket.create_connection((HOST, self._ports[other]), timeout=1.0)
        except OSError:  # the node is unreachable
            near.close()
            return
        for sock in (near, far):
            sock.settimeout(0)
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        _Stream(self._switch, (one, other), near, far)
        _Stream(self._switch, (other, one), far, near)


class _Stream:
    """One direction of a connection."""

    def __init__(self, switch: Switch, pair: tuple[str, str], source: socket.socket, sink: socket.socket) -> None:
        self._switch = switch
        self._pair = pair
        self._source, self._sink = source, sink
        self._last_due = 0.0
        self._under_way: deque[bytes] = deque()
        self._waiting = b""
        """Bytes that have arrived and that the receiver has no room for."""
        switch.watch(source.fileno(), self._read)

    def _read(self) -> None:
        try:
            data = self._source.recv(PIECE_BYTES)
        except BlockingIOError:
            return
        except OSError:
            data = b""
        if data:
            self._enter(data)
        elif self._source.fileno() >= 0:
            self._switch.forget(self._source.fileno())
            self._switch.after(max(0.0, self._last_due - time.monotonic()), self._close)

    def _enter(self, data: bytes) -> None:
        due = self._switch.journey(*self._pair, len(data) * WIRE_SHARE)
        if self._source.fileno() < 0:
            return
        if due is None:
            self._switch.forget(self._source.fileno())
            self._switch.after(AGAIN_S, lambda: self._enter(data))
            return
        self._switch.watch(self._source.fileno(), self._read)
        self._last_due = max(self._last_due, due)
        self._under_way.append(data)
        self._switch.after(self._last_due - time.monotonic(), self._leave)

    def _leave(self) -> None:
        """Hands over the oldest piece, which has arrived."""
        self._switch.stats.delivered += 1
        was_waiting = bool(self._waiting)
        self._waiting += self._under_way.popleft()
        if not was_waiting:
            self._write()

    def _write(self) -> None:
        try:
            sent = self._sink.send(self._waiting)
        except BlockingIOError:
            sent = 0
        except OSError:
            self._close()
            return
        self._waiting = self._waiting[sent:]
        if self._waiting:
            self._switch.after(AGAIN_S, self._write)

    def _close(self) -> None:
        self._waiting = b""
        for sock in (self._source, self._sink):
            if sock.fileno() >= 0:
                self._switch.forget(sock.fileno())
                with suppress(OSError):
                    sock.close()
