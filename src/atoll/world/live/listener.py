"""Listening: accepts incoming connections, or refuses them with a reason; the number in a handshake is limited."""

import asyncio
import contextlib
import logging
import socket
import ssl
from collections.abc import Callable, Coroutine, Sequence
from functools import partial
from typing import Any, Protocol

from atoll.errors import FrameError, InvitationError
from atoll.world.base import Lane
from atoll.world.live.carrier import Carrier, secure
from atoll.world.live.fields import parse_addresses
from atoll.world.live.hello import HANDSHAKE_S
from atoll.world.live.keys import Address

__all__ = ["Listener"]

log = logging.getLogger("atoll")

MOST_STRANGERS = 64
"""The limit of concurrent unauthenticated connections; others wait in the accept queue."""


class Doorkeeping(Protocol):
    """The part of the host that a listener uses."""

    own_addresses: list[Address]

    def spawn(self, work: Coroutine[Any, Any, Any], name: str) -> "asyncio.Task[Any]": ...

    def keep(self, work: Callable[[], Coroutine[Any, Any, None]], name: str) -> None: ...

    def pin(self, sock: socket.socket) -> None: ...

    async def welcome(self, carrier: Carrier, identity: str | None) -> bool: ...

    def refused(self, who: str, why: str) -> None: ...


class Listener:
    """Accepts connections.

    Args:
        host: the node's host.
        context: the TLS context; `None`: no encryption.
    """

    def __init__(self, host: Doorkeeping, context: ssl.SSLContext | None) -> None:
        self._host = host
        self._context = context
        self._listening: list[socket.socket] = []
        self._strangers = asyncio.Semaphore(MOST_STRANGERS)
        self._knocking: set[socket.socket] = set()
        """Accepted sockets whose task has not started yet."""

    def listen_at(self, address: Address, public: Sequence[Address] = ()) -> None:
        """Accepts connections at an address of this machine, and announces it, or `public`, to other nodes."""
        host, port = address
        try:
            parse_addresses([list(each) for each in public], "--public")
        except FrameError as error:
            raise InvitationError(str(error)) from None
        try:
            listening = socket.create_server(address)
        except OSError as error:
            raise InvitationError(f"cannot listen at {host}:{port}: {error.strerror or error}") from None
        self.listen(listening)
        port = listening.getsockname()[1]
        self._host.own_addresses = list(public) or [(_own_host(host), port)]

    def listen(self, sock: socket.socket) -> None:
        """Accepts connections on a bound socket."""
        sock.settimeout(0)
        self._host.pin(sock)  # accepted sockets inherit it
        sock.listen(256)
        self._listening.append(sock)
        self._host.keep(partial(self._accept, sock), "listening")

    async def _accept(self, listening: socket.socket) -> None:
        while True:
            await self._strangers.acquire()
            try:
                sock = await _accepted(listening)
            except OSError as error:
                self._strangers.release()
                log.warning("cannot accept a connection: %s", error)
                await asyncio.sleep(0.1)
                continue
            sock.settimeout(0)
            self._knocking.add(sock)
            self._host.spawn(self._receive_stranger(sock), "a stranger")

    async def _receive_stranger(self, sock: socket.socket) -> None:
        carrier = None
        welcome = False
        where = "somebody"
        self._knocking.discard(sock)
        try:
            with contextlib.suppress(OSError):
                where = str(sock.getpeername()[0])
            async with asyncio.timeout(HANDSHAKE_S):
                carrier, identity = await secure(sock, self._context, lane=Lane.CONTROL, dialled=False)
                welcome = await self._host.welcome(carrier, identity)
        except FrameError as error:
            self._host.refused(where, str(error))
        except (OSError, TimeoutError) as error:
            log.debug("a connection from %s came to nothing: %s", where, error or "too slow")
        except Exception as error:
            log.exception("a connection from %s has failed", where)
            self._host.refused(where, f"{type(error).__name__}: {error}")
        finally:
            self._strangers.release()
            if not welcome:
                if carrier:
                    carrier.close()
                else:
                    sock.close()

    def close(self) -> None:
        for sock in (*self._listening, *self._knocking):
            sock.close()


async def _accepted(listening: socket.socket) -> socket.socket:
    """Returns the next connection.  asyncio's own `sock_accept` can lose a connection when it is cancelled."""
    loop = asyncio.get_running_loop()
    while True:
        with contextlib.suppress(BlockingIOError):
            return listening.accept()[0]
        readable = asyncio.Event()
        loop.add_reader(listening, readable.set)
        try:
            await readable.wait()
        finally:
            loop.remove_reader(listening)


def _own_host(host: str) -> str:
    """Returns the host name at which other nodes may dial this machine; a guess for a wildcard address."""
    if host not in ("0.0.0.0", "::", ""):  # noqa: S104 - compared with, not bound to
        return host
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sock:
        try:
            sock.connect(("192.0.2.1", 9))  # sends nothing: the system selects the source address
            return str(sock.getsockname()[0])
        except OSError:
            return "127.0.0.1"
