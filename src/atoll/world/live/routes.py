"""Routes around dead links: while there is no direct connection to a peer, frames go through a third node that reaches
both sides.  This node also relays frames between other nodes.
"""

import asyncio
import contextlib
import logging
import os
from collections.abc import Coroutine, Sequence
from typing import Any, Protocol

from atoll.errors import FrameError
from atoll.world.base import Buffer, Lane
from atoll.world.live.carrier import Carrier
from atoll.world.live.frames import Head, Kind
from atoll.world.live.hello import HANDSHAKE_S, LATER_S
from atoll.world.live.session import LANES, Session
from atoll.world.live.tunnel import Tunnel, parse_envelope

__all__ = ["RelayRoutes"]

log = logging.getLogger("atoll")

LOOK_EVERY_S = 0.5
LEAST_ANSWER_S = 1.0
MOST_TUNNELS = 1024
"""The limit of concurrent tunnels; a node needs two for each peer without a direct connection."""


class Crossing(Protocol):
    """The part of the host that routes use."""

    name: str
    sessions: dict[str, Session]
    change: asyncio.Event

    def spawn(self, work: Coroutine[Any, Any, Any], name: str) -> "asyncio.Task[Any]": ...

    def count(self, size: int) -> None: ...

    async def greet(self, session: Session, carrier: Carrier) -> None: ...

    async def introduce(self, session: Session, carrier: Carrier, identity: str | None) -> bool: ...

    async def welcome(self, carrier: Carrier, identity: str | None) -> bool: ...

    def refused(self, who: str, why: str) -> None: ...


class RelayRoutes:
    """A node's relay routes, and the routes of others through it."""

    def __init__(self, host: Crossing) -> None:
        self._host = host
        self._tunnels: dict[int, Tunnel] = {}

    async def keep(self, session: Session) -> None:
        """While there is no direct connection to a peer, looks for a node that reaches it."""
        while True:
            change = self._host.change
            via = None if session.direct(Lane.CONTROL) else self._third(session)
            if via and self._host.name > session.name and not session.reachable:
                await asyncio.sleep(LATER_S)
            if via and not session.direct(Lane.CONTROL):
                for lane in LANES:
                    now = session.carrier(lane)
                    if now is None or now.closed:
                        await self._tunnel(session, lane, via)
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(LOOK_EVERY_S):
                    await change.wait()

    def _third(self, session: Session) -> Session | None:
        """Returns the third node with the shortest round trip to the peer; `None` if no node reaches it."""
        found = [
            each
            for each in self._host.sessions.values()
            if each is not session and each.direct(Lane.CONTROL) and session.name in each.reaches
        ]
        return min(found, key=lambda each: each.round_trip_s + each.reaches[session.name], default=None)

    async def _tunnel(self, session: Session, lane: Lane, via: Session) -> None:
        tunnel = self._make_tunnel(lane, session.name, via, number=int.from_bytes(os.urandom(8), "big"), dialled=True)
        used = False
        round_trip_s = via.round_trip_s + via.reaches.get(session.name, 0.0)
        try:
            async with asyncio.timeout(max(LEAST_ANSWER_S, 8 * round_trip_s)):
                await self._host.greet(session, tunnel)
                used = await self._host.introduce(session, tunnel, None)
        except (OSError, TimeoutError, FrameError) as error:
            log.debug("no way to %s through %s: %s", session.name, via.name, error or "too slow")
        finally:
            if not used:
                self._end(tunnel)

    def _make_tunnel(self, lane: Lane, peer: str, via: Session, *, number: int, dialled: bool) -> Tunnel:
        async def send(lane: Lane, number: int, payload: Sequence[Buffer]) -> None:
            carrier = via.direct(lane) or via.direct(Lane.CONTROL)
            if carrier is None:
                raise ConnectionResetError(f"{via.name} is not reached any more")
            await carrier.send(Kind.RELAY, number, 0, payload)

        tunnel = Tunnel(lane, dialled=dialled, via=via.name, me=self._host.name, peer=peer, number=number, send=send)
        self._tunnels[number] = tunnel
        return tunnel

    def _end(self, tunnel: Tunnel) -> None:
        self._tunnels.pop(tunnel.number, None)
        tunnel.close()

    async def relayed(self, session: Session, carrier: Carrier, head: Head, payload: memoryview) -> None:
        """Handles a RELAY frame: it is for another node, or came through another node."""
        if carrier.via is not None:
            raise FrameError("an envelope inside an envelope")
        envelope = parse_envelope(payload)
        if envelope.receiver != self._host.name:
            await self._hand_on(session, carrier.lane, head, payload, envelope.receiver)
            return
        tunnel = self._tunnels.get(head.number)
        if tunnel is None or tunnel.closed:
            full = len(self._tunnels) >= MOST_TUNNELS
            if envelope.frame[3] != Kind.HELLO or envelope.sender not in self._host.sessions or full:
                session.tell(Kind.LOST, head.number)
                return
            tunnel = self._make_tunnel(carrier.lane, envelope.sender, session, number=head.number, dialled=False)
            self._host.spawn(self._receive_through(tunnel), f"{envelope.sender} through {session.name}")
        elif tunnel.peer != envelope.sender or tunnel.via != session.name:
            raise FrameError("an envelope for a tunnel that is somebody else's")
        tunnel.arrived(envelope.frame)

    async def _hand_on(self, session: Session, lane: Lane, head: Head, payload: memoryview, receiver: str) -> None:
        to = self._host.sessions.get(receiver)
        carrier = (to.direct(lane) or to.direct(Lane.CONTROL)) if to else None
        if to is None or carrier is None:
            session.tell(Kind.LOST, head.number)
            return
        try:
            await carrier.send(Kind.RELAY, head.number, head.offset, [payload])
        except OSError as error:
            to.drop(carrier.lane, f"lost while handing on ({error})", carrier)
            session.tell(Kind.LOST, head.number)
        else:
            self._host.count(len(payload))

    async def _receive_through(self, tunnel: Tunnel) -> None:
        welcome = False
        try:
            async with asyncio.timeout(HANDSHAKE_S):
                welcome = await self._host.welcome(tunnel, None)
        except FrameError as error:
            self._host.refused(f"{tunnel.peer} through {tunnel.via}", str(error))
        except (OSError, TimeoutError) as error:
            log.debug("nothing came of a way through %s: %s", tunnel.via, error or "too slow")
        finally:
            if not welcome:
                self._end(tunnel)

    def lost(self, number: int) -> None:
        tunnel = self._tunnels.get(number)
        if tunnel:
            self._end(tunnel)

    def closed(self, via: str) -> None:
        """The direct connection to a peer is lost: closes all routes through it."""
        for tunnel in list(self._tunnels.values()):
            if tunnel.via == via:
                self._end(tunnel)
