"""Carriers transport frames.  Here they are TCP connections, encrypted or not; `tunnel.py` has the other kind.

The loop's own `sock_*` calls read and write sockets, directly into and from the buffers of messages.  TLS runs in
memory in between.
"""

import abc
import asyncio
import contextlib
import socket
import ssl
import sys
from collections import deque
from collections.abc import Callable, Sequence

from atoll.errors import FrameError
from atoll.world.base import Buffer, Lane
from atoll.world.live.frames import HEAD_BYTES, Head, Kind, head_of, parse_head, room
from atoll.world.live.keys import id_of_certificate

__all__ = ["Carrier", "Place", "TcpCarrier", "secure"]

Place = Callable[[Head], memoryview | None]
"""Returns the buffer for a frame's payload; `None`: a new buffer is used."""
SMALL_BYTES = 1 << 14
TLS_PIECE = 1 << 18
TURNS = 4
"""The loop needs this many iterations to wake the tasks that wait for a socket, and to remove it."""


class Carrier(abc.ABC):
    """Transports the frames of one lane between two nodes."""

    def __init__(self, lane: Lane, *, dialled: bool) -> None:
        self.lane = lane
        self.dialled = dialled
        """Whether this side opened it."""
        self.closed = False
        self.limits_its_queue = False
        """Whether it keeps the queues of links short by itself."""

    @property
    @abc.abstractmethod
    def via(self) -> str | None:
        """The node that relays the frames; `None` if the carrier leads directly to the peer."""

    @property
    def strands(self) -> "tuple[Carrier, ...]":
        """The connections that it consists of."""
        return (self,)

    @abc.abstractmethod
    async def send(self, kind: Kind, number: int = 0, offset: int = 0, payload: Sequence[Buffer] = ()) -> None:
        """Sends a frame; returns when the operating system has accepted it."""

    @abc.abstractmethod
    def post(self, kind: Kind, number: int = 0, offset: int = 0, payload: bytes = b"") -> None:
        """Sends a small frame without waiting for it."""

    @abc.abstractmethod
    async def receive(self, place: Place | None = None) -> tuple[Head, memoryview]:
        """Returns the next frame."""

    @abc.abstractmethod
    def close(self) -> None:
        """Closes it at once; pending calls to send or receive raise `ConnectionError`."""


class _Plain:
    """A stream without encryption."""

    encrypted = False

    def __init__(self, sock: socket.socket) -> None:
        self._sock = sock
        self._loop = asyncio.get_running_loop()

    async def write(self, parts: Sequence[Buffer]) -> None:
        for part in parts:
            await self._loop.sock_sendall(self._sock, part)

    def seal(self, frame: bytes) -> bytes:
        """Returns the bytes of a frame on the wire."""
        return frame

    async def read_into(self, buffer: memoryview) -> None:
        done = 0
        while done < len(buffer):
            count = await self._loop.sock_recv_into(self._sock, buffer[done:])
            if count == 0:
                raise ConnectionResetError("the connection has ended")
            done += count


class _Secure:
    """A stream over TLS."""

    encrypted = True

    def __init__(self, sock: socket.socket, context: ssl.SSLContext, *, server: bool) -> None:
        self._sock = sock
        self._loop = asyncio.get_running_loop()
        self._incoming, self._outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
        self._tls = context.wrap_bio(self._incoming, self._outgoing, server_side=server)

    async def shake_hands(self) -> str:
        """Performs the TLS handshake and returns the peer's identity."""
        while True:
            try:
                self._tls.do_handshake()
                break
            except ssl.SSLWantReadError:
                await self._flush()
                await self._fetch()
        await self._flush()
        der = self._tls.getpeercert(binary_form=True)
        assert der is not None, "a certificate is required"
        return id_of_certificate(der)

    def seal(self, frame: bytes) -> bytes:
        """Returns the bytes of a frame on the wire; the caller must send them before any other write."""
        self._tls.write(frame)
        return self._outgoing.read()

    async def _flush(self) -> None:
        if self._outgoing.pending:
            await self._loop.sock_sendall(self._sock, self._outgoing.read())

    async def _fetch(self) -> None:
        data = await self._loop.sock_recv(self._sock, TLS_PIECE)
        if not data:
            raise ConnectionResetError("the connection has ended")
        self._incoming.write(data)

    async def write(self, parts: Sequence[Buffer]) -> None:
        for part in parts:
            view = memoryview(part).cast("B")
            for start in range(0, len(view), TLS_PIECE):
                self._tls.write(view[start : start + TLS_PIECE])
                if self._outgoing.pending >= TLS_PIECE:
                    await self._flush()
        await self._flush()

    async def read_into(self, buffer: memoryview) -> None:
        done = 0
        while done < len(buffer):
            try:
                count = self._tls.read(len(buffer) - done, buffer[done:])
            except ssl.SSLWantReadError:
                await self._fetch()
                continue
            if not count:
                raise ConnectionResetError("the connection has ended")
            done += int(count)


class TcpCarrier(Carrier):
    """A TCP connection."""

    def __init__(self, sock: socket.socket, stream: _Plain | _Secure, *, lane: Lane, dialled: bool) -> None:
        super().__init__(lane, dialled=dialled)
        self._sock = sock
        self._stream = stream
        self._writing = asyncio.Lock()
        self._head = memoryview(bytearray(HEAD_BYTES))
        self._left = b""
        """The unsent rest of a posted frame that is already sealed: it must be sent first."""
        self._posted: deque[bytes] = deque()
        self._posting: asyncio.Task[None] | None = None
        if sys.platform == "linux":
            name = sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_CONGESTION, 16)
            self.limits_its_queue = name.rstrip(b"\0") == b"bbr"

    @property
    def via(self) -> str | None:
        return None

    async def send(self, kind: Kind, number: int = 0, offset: int = 0, payload: Sequence[Buffer] = ()) -> None:
        head = head_of(kind, number, offset, payload, encrypted=self._stream.encrypted)
        small = sum(memoryview(part).nbytes for part in payload) <= SMALL_BYTES
        parts: Sequence[Buffer] = [b"".join([head, *payload])] if small else [head, *payload]
        async with self._writing:
            if self.closed:
                raise ConnectionResetError("the connection is closed")
            try:
                await self._send_what_is_left()
                await self._stream.write(parts)
            except BaseException:
                self.close()  # half a frame may be sent: nothing can follow it
                raise

    async def _send_what_is_left(self) -> None:
        if self._left:
            left, self._left = self._left, b""
            await asyncio.get_running_loop().sock_sendall(self._sock, left)

    def post(self, kind: Kind, number: int = 0, offset: int = 0, payload: bytes = b"") -> None:
        if self.closed:
            raise ConnectionResetError("the connection is closed")
        frame = head_of(kind, number, offset, [payload], encrypted=self._stream.encrypted) + payload
        if self._writing.locked() or self._left or self._posted:
            self._posted.append(frame)
        else:  # nearly always: at once, without a task
            sealed = self._stream.seal(frame)
            try:
                sent = self._sock.send(sealed)
            except BlockingIOError:
                sent = 0
            self._left = sealed[sent:]
        if (self._left or self._posted) and self._posting is None:
            self._posting = asyncio.create_task(self._send_posted(), name="posting")

    async def _send_posted(self) -> None:
        try:
            async with self._writing:
                await self._send_what_is_left()
                while self._posted and not self.closed:
                    await self._stream.write([self._posted.popleft()])
        except OSError:
            self.close()
        finally:
            self._posting = None

    async def receive(self, place: Place | None = None) -> tuple[Head, memoryview]:
        await self._stream.read_into(self._head)
        head = parse_head(self._head)
        payload = (place and place(head)) or room(head.size)
        if head.size:
            await self._stream.read_into(payload)
        head.check([payload], encrypted=self._stream.encrypted)
        return head, payload

    def close(self) -> None:
        if not self.closed:
            self.closed = True
            if self._posting and self._posting is not asyncio.current_task():
                self._posting.cancel()
            with contextlib.suppress(OSError):
                self._sock.shutdown(socket.SHUT_RDWR)  # wakes the tasks that wait for it
            _close_later(self._sock)


def _close_later(sock: socket.socket, turns: int = TURNS) -> None:
    """Closes a socket after the loop has removed it.  If it were closed earlier, the loop could not remove it, and a
    new socket might get its file descriptor.
    """
    if turns:
        asyncio.get_running_loop().call_soon(_close_later, sock, turns - 1)
    else:
        sock.close()


async def secure(
    sock: socket.socket, context: ssl.SSLContext | None, *, lane: Lane, dialled: bool
) -> tuple[TcpCarrier, str | None]:
    """Turns a connection into a carrier; with TLS it performs the handshake and returns the peer's identity too."""
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    if context is None:
        return TcpCarrier(sock, _Plain(sock), lane=lane, dialled=dialled), None
    stream = _Secure(sock, context, server=not dialled)
    try:
        identity = await stream.shake_hands()
    except ssl.SSLError as error:
        raise FrameError(f"no TLS with the run's key ({error.reason or error})") from None
    return TcpCarrier(sock, stream, lane=lane, dialled=dialled), identity
