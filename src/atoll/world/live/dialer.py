"""Dialers try to connect a node to its peers directly.

While there is no direct connection, a new attempt begins every half second, even if earlier ones are still pending.
"""

import asyncio
import contextlib
import logging
import socket
import ssl
import time
from collections.abc import Coroutine
from typing import Any, Protocol

from atoll.errors import FrameError
from atoll.world.base import Lane
from atoll.world.live.carrier import Carrier, secure
from atoll.world.live.hello import HANDSHAKE_S, LATER_S
from atoll.world.live.keys import Address
from atoll.world.live.session import Session
from atoll.world.live.strands import Strand, StripedCarrier

__all__ = ["DIAL_EVERY_S", "Dialer"]

log = logging.getLogger("atoll")

DIAL_EVERY_S = 0.5
ATTEMPTS = 6
"""The limit of concurrent attempts for one lane of one peer."""
REFUSED_S = 5.0
"""If a process of another run answers at an address, the address is not dialled for this time."""


class Dialing(Protocol):
    """The part of the host that a dialer uses."""

    name: str
    addresses: dict[str, list[Address]]

    def spawn(self, work: Coroutine[Any, Any, Any], name: str) -> "asyncio.Task[Any]": ...

    def pin(self, sock: socket.socket) -> None: ...

    async def greet(self, session: Session, carrier: Carrier, strand: Strand) -> None: ...

    async def introduce(self, session: Session, carrier: Carrier, identity: str | None) -> bool: ...

    def refused(self, who: str, why: str) -> None: ...


class Dialer:
    """Dials a node's peers.

    Args:
        host: the node's host.
        context: the TLS context; `None`: no encryption.
    """

    def __init__(self, host: Dialing, context: ssl.SSLContext | None) -> None:
        self._host = host
        self._context = context
        self._left_alone: dict[tuple[str, Address], float] = {}
        """Addresses where another process answers, each with the time until which it is not dialled."""

    async def keep(self, session: Session, lane: Lane) -> None:
        """Keeps trying to connect to a peer directly."""
        attempts: set[asyncio.Task[Any]] = set()
        while True:
            changed = session.changed
            if not self._should_dial(session, lane):
                for attempt in attempts:
                    attempt.cancel()
                await _wait(changed, DIAL_EVERY_S)
                continue
            if self._host.name > session.name and not attempts:
                await _wait(changed, LATER_S)
                if not self._should_dial(session, lane):
                    continue
            works: list[Coroutine[Any, Any, object]] = []
            if session.direct(lane):
                works = [] if attempts else [self._widen(session, lane)]
            elif len(attempts) < ATTEMPTS:
                works = [self._dial(session, lane, address) for address in self._addresses(session.name)]
            for work in works:
                attempt = self._host.spawn(work, f"an attempt to reach {session.name}")
                attempts.add(attempt)
                attempt.add_done_callback(attempts.discard)
            await _wait(changed, DIAL_EVERY_S)

    def _should_dial(self, session: Session, lane: Lane) -> bool:
        now = session.direct(lane)
        if not self._host.addresses.get(session.name) or (now and len(now.strands) == session.wanted_strands(lane)):
            return False
        if lane is Lane.CONTROL:
            return True
        control = session.direct(Lane.CONTROL)
        return control is not None and control.dialled

    def _addresses(self, name: str) -> list[Address]:
        now = time.monotonic()
        return [each for each in self._host.addresses[name] if self._left_alone.get((name, each), 0.0) <= now]

    async def _widen(self, session: Session, lane: Lane) -> None:
        """Replaces a connection by another number of them."""
        for address in self._addresses(session.name):
            if await self._dial(session, lane, address, session.wanted_strands(lane)):
                return
        session.cannot_widen(lane)

    async def _dial(self, session: Session, lane: Lane, address: Address, count: int = 1) -> bool:
        """Connects to a peer; returns whether the connection is used."""
        carrier: Carrier | None = None
        opened: list[Carrier] = []
        try:
            async with asyncio.timeout(HANDSHAKE_S):
                identity = await self._connect(opened, session, lane, address, Strand.some(count))
                carrier = opened[0] if len(opened) == 1 else StripedCarrier(opened)
                if not await self._host.introduce(session, carrier, identity):
                    carrier.close()
                    return False
        except FrameError as error:
            self._host.refused(session.name, f"at {address[0]}:{address[1]}: {error}")
            self._left_alone[session.name, address] = time.monotonic() + REFUSED_S
            _close(opened)
            return False
        except (OSError, TimeoutError, ValueError, OverflowError) as error:  # the system may reject an address
            log.debug("%s at %s:%d is not reached: %s", session.name, *address, error or "too slow")
            _close(opened)
            return False
        except asyncio.CancelledError:
            if carrier is None or session.carrier(lane) is not carrier:
                _close(opened)
            raise
        return True

    async def _connect(
        self, opened: list[Carrier], session: Session, lane: Lane, address: Address, strands: list[Strand]
    ) -> str | None:
        """Adds connections to `opened`, in the order of `strands`, over which HELLO was sent; returns the peer's
        identity.
        """
        loop = asyncio.get_running_loop()
        [(family, kind, proto, _, where), *_] = await loop.getaddrinfo(*address, type=socket.SOCK_STREAM)
        identities: set[str | None] = set()
        there: dict[int, Carrier] = {}

        async def connect(strand: Strand) -> None:
            sock = socket.socket(family, kind, proto)
            try:
                sock.settimeout(0)
                self._host.pin(sock)
                await loop.sock_connect(sock, where)
                carrier, identity = await secure(sock, self._context, lane=lane, dialled=True)
            except BaseException:
                sock.close()
                raise
            there[strand.place] = carrier
            identities.add(identity)
            await self._host.greet(session, carrier, strand)  # at once: a stranger without a HELLO takes a place

        try:
            found = await asyncio.gather(*map(connect, strands), return_exceptions=True)
        finally:
            opened += [there[place] for place in sorted(there)]
        for each in found:
            if each is not None:
                raise each
        if len(identities) > 1:
            raise FrameError("one address, and several nodes")
        return identities.pop()


async def _wait(changed: asyncio.Event, seconds: float) -> None:
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(seconds):
            await changed.wait()


def _close(opened: list[Carrier]) -> None:
    for carrier in opened:
        carrier.close()
