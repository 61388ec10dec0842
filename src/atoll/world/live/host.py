"""Hosts: a node's end of all its links.  Listens, dials, finds ways around, and keeps one session with every peer.

Either of two nodes may dial the other; if both do, the connection of the one whose name comes first counts.  While a
peer is wanted and not reached, an attempt begins every half second, whatever became of those before it.
"""

import asyncio
import contextlib
import json
import logging
import os
import socket
from collections.abc import Callable, Coroutine, Sequence
from typing import Any

from atoll.errors import FrameError, InvitationError
from atoll.world.base import Lane, Message
from atoll.world.live.carrier import Carrier, secure
from atoll.world.live.desk import Desk
from atoll.world.live.frames import Kind, parse_json
from atoll.world.live.hello import HANDSHAKE_S, LATER_S, Hello, parse_addresses
from atoll.world.live.keys import Address, Identity, Invitation
from atoll.world.live.session import Session
from atoll.world.live.ways import Ways

__all__ = ["Host", "best_congestion"]

log = logging.getLogger("atoll")

DIAL_EVERY_S = 0.5
ATTEMPTS = 6
"""At one time, for one lane of one peer."""
MOST_STRANGERS = 64
"""Connections that have not shown who they are, at one time; more have to wait to be accepted."""
NEWS_EVERY_S = 1.0
TAKEN = "a node of that name is here, with another key"


def best_congestion() -> str:
    """BBR where the system lets a user have it: it does not take every lost packet for a full link.  Else the system's
    own, which is the empty string.
    """
    with socket.socket() as sock:
        try:
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_CONGESTION, b"bbr")
        except (OSError, AttributeError):  # not allowed here, or not Linux
            return ""
        return "bbr"


class Host:
    """A node's end of all its links.

    Args:
        name: the node's.
        names: of all nodes that there may be.
        invitation: the run's secret.
        identity: the node's key.
        deliver: gets every message, with the session that it came by and when it began to come.
        encrypted: whether to use TLS.
        congestion: which congestion control TCP is to use; the system's own if it is empty.
        on_reach: called when a peer begins or ceases to be reachable.
        on_refused: called when something was refused, with who sent it and why.
    """

    def __init__(
        self,
        name: str,
        names: Sequence[str],
        invitation: Invitation,
        identity: Identity,
        *,
        deliver: Callable[[Message, Session, float], None],
        encrypted: bool = True,
        congestion: str = "",
        on_reach: Callable[[str, bool], None] = lambda _name, _reachable: None,
        on_refused: Callable[[str, str], None] = lambda _name, _why: None,
    ) -> None:
        self.name = name
        self.run_id = invitation.run_id
        self.identity = identity
        self._deliver = deliver
        self._on_reach = on_reach
        self._on_refused = on_refused
        self._congestion = congestion
        self._server = identity.context(server=True) if encrypted else None
        self._client = identity.context(server=False) if encrypted else None
        self.life = int.from_bytes(os.urandom(6), "big") + 1
        self.sessions = {each: Session(each, host=self) for each in names if each != name}
        self.addresses: dict[str, list[Address]] = {}
        """Where peers listen, as far as is known."""
        self.desk = Desk(self)
        self.age: Callable[[], float] = lambda: 0.0
        """How old the run is."""
        self.step_s = 0.0
        """How long a training step of this node takes, for who plans with it."""
        self.conflict = ""
        """Why others will not have this node, if its name is taken."""
        self.own_addresses: list[Address] = []
        self.sent_bytes = 0
        self._listening: list[socket.socket] = []
        self.ways = Ways(self)
        self._tasks: set[asyncio.Task[Any]] = set()
        self._strangers = asyncio.Semaphore(MOST_STRANGERS)
        self._knocking: set[socket.socket] = set()
        """Who was accepted a moment ago."""
        self.change = asyncio.Event()
        """Set, and another one made, when a way to somebody has come or gone."""
        for session in self.sessions.values():
            self.spawn(self._keep_dialling(session, Lane.CONTROL), f"dialling {session.name}")
            self.spawn(self._keep_dialling(session, Lane.BULK), f"dialling {session.name} for bulk")
            self.spawn(self.ways.keep(session), f"a way around to {session.name}")
        self.spawn(self._keep_telling(), "news")

    def spawn(self, work: Coroutine[Any, Any, Any], name: str) -> asyncio.Task[Any]:
        task = asyncio.create_task(work, name=name)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    # What sessions ask ---

    def count(self, size: int) -> None:
        self.sent_bytes += size

    def deliver(self, session: Session, message: Message, since: float) -> None:
        self._deliver(message, session, since)

    def refused(self, name: str, why: str) -> None:
        self._on_refused(name, why)

    def reach_changed(self, session: Session, *, was_reachable: bool) -> None:
        if not session.direct(Lane.CONTROL):
            self.ways.closed(session.name)
        if session.reachable != was_reachable:
            self._on_reach(session.name, session.reachable)
        self.change.set()
        self.change = asyncio.Event()

    async def wait_straight(self, name: str, lane: Lane) -> None:
        """Returns when a lane goes straight to a peer."""
        while self.sessions[name].direct(lane) is None:
            await self.change.wait()

    async def wait_for_change(self) -> None:
        """Returns when a way to somebody has come or gone."""
        await self.change.wait()

    # Listening ---

    def listen_at(self, address: Address, public: Sequence[Address] = ()) -> None:
        """Accepts connections at an address of this machine, and tells others to dial that, or `public`."""
        host, port = address
        try:
            listening = socket.create_server(address)
        except OSError as error:
            raise InvitationError(f"cannot listen at {host}:{port}: {error.strerror or error}") from None
        self.listen(listening)
        port = listening.getsockname()[1]
        self.own_addresses = list(public) or [(_own_host(host), port)]

    def listen(self, sock: socket.socket) -> None:
        """Accepts connections on a socket that is bound."""
        sock.settimeout(0)
        self._pin(sock)  # who is accepted has it from here
        sock.listen(256)
        self._listening.append(sock)
        self.spawn(self._accept(sock), "listening")

    def _pin(self, sock: socket.socket) -> None:
        if self._congestion:
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_CONGESTION, self._congestion.encode())

    async def _accept(self, listening: socket.socket) -> None:
        loop = asyncio.get_running_loop()
        while True:
            await self._strangers.acquire()
            try:
                sock, _ = await loop.sock_accept(listening)
            except OSError as error:
                self._strangers.release()
                log.warning("cannot accept a connection: %s", error)
                await asyncio.sleep(0.1)
                continue
            sock.settimeout(0)
            self._knocking.add(sock)
            self.spawn(self._receive_stranger(sock), "a stranger")

    async def _receive_stranger(self, sock: socket.socket) -> None:
        carrier = None
        welcome = False
        where = "somebody"
        self._knocking.discard(sock)
        try:
            with contextlib.suppress(OSError):
                where = str(sock.getpeername()[0])
            async with asyncio.timeout(HANDSHAKE_S):
                carrier, identity = await secure(sock, self._server, lane=Lane.CONTROL, dialled=False)
                welcome = await self.welcome(carrier, identity)
        except FrameError as error:
            log.warning("a connection from %s is refused: %s", where, error)
            self._on_refused(where, str(error))
        except (OSError, TimeoutError) as error:
            log.debug("a connection from %s came to nothing: %s", where, error or "too slow")
        finally:
            self._strangers.release()
            if not welcome:
                if carrier:
                    carrier.close()
                else:
                    sock.close()

    async def welcome(self, carrier: Carrier, identity: str | None) -> bool:
        """Answers who dials; whether it is let in."""
        head, payload = await carrier.receive()
        if head.kind in (Kind.JOIN, Kind.PROBE) and carrier.via is None:
            await self.desk.answer(carrier, head.kind, parse_json(payload), identity)
            return False
        if head.kind is not Kind.HELLO:
            raise FrameError(f"a connection that begins with {head.kind.name}")
        hello = Hello.parse(parse_json(payload))
        if hello.run != self.run_id:
            raise FrameError("a node of another run")
        session = self.sessions.get(hello.name)
        if session is None:
            raise FrameError(f"there is no place for a node called {hello.name!r} in this run")
        if identity is not None and identity != hello.id:
            raise FrameError(f"{hello.name} shows another key than it has")
        why = self._why_not(session, carrier, hello)
        if why:
            await carrier.send(Kind.REFUSE, payload=[why.encode()])
            return False
        self._meet(session, hello)
        carrier.lane = hello.lane
        await carrier.send(Kind.WELCOME, payload=[self._hello(session, hello.lane)])
        session.attach(carrier, hello.position_for(self.life))
        return True

    def _why_not(self, session: Session, carrier: Carrier, hello: Hello) -> str:
        """Why a connection is not wanted."""
        now = session.carrier(hello.lane)
        if session.id is not None and session.id != hello.id and session.reachable:
            return TAKEN
        if hello.lane is Lane.BULK and (session.life != hello.life or not session.reachable):
            return "control comes first"
        if now is None or session.life != hello.life:
            return ""
        if carrier.via is not None and now.via is None:
            return "there is a straight way"
        alike = (carrier.via is None) == (now.via is None)
        if alike and now.dialled and self.name < session.name:
            return "there is a connection"
        if alike and not now.dialled and session.age_s(hello.lane) < DIAL_EVERY_S:
            return "one of your connections was quicker"
        return ""

    def _meet(self, session: Session, hello: Hello) -> None:
        session.meet(hello.life)
        session.id = hello.id
        if hello.listen:
            self.addresses[session.name] = hello.listen

    def _hello(self, session: Session, lane: Lane) -> bytes:
        found = {
            "run": self.run_id,
            "name": self.name,
            "id": self.identity.id,
            "lane": lane.value,
            "life": self.life,
            "your_life": session.life,
            "have": session.position(lane),
            "listen": self.own_addresses,
        }
        return json.dumps(found).encode()

    # Dialling ---

    async def _keep_dialling(self, session: Session, lane: Lane) -> None:
        """Tries to reach a peer straight, again and again."""
        attempts: set[asyncio.Task[None]] = set()
        while True:
            changed = session.changed
            if not self._should_dial(session, lane):
                for attempt in attempts:
                    attempt.cancel()
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(DIAL_EVERY_S):
                        await changed.wait()
                continue
            if self.name > session.name and not attempts:
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(LATER_S):
                        await changed.wait()
                if not self._should_dial(session, lane):
                    continue
            if len(attempts) < ATTEMPTS:
                for address in self.addresses[session.name]:
                    attempt = self.spawn(self._dial(session, lane, address), f"an attempt to reach {session.name}")
                    attempts.add(attempt)
                    attempt.add_done_callback(attempts.discard)
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(DIAL_EVERY_S):
                    await changed.wait()

    def _should_dial(self, session: Session, lane: Lane) -> bool:
        if not self.addresses.get(session.name) or session.direct(lane):
            return False
        if lane is Lane.CONTROL:
            return True
        control = session.direct(Lane.CONTROL)
        return control is not None and control.dialled

    async def _dial(self, session: Session, lane: Lane, address: Address) -> None:
        loop = asyncio.get_running_loop()
        carrier: Carrier | None = None
        sock = None
        try:
            async with asyncio.timeout(HANDSHAKE_S):
                [(family, kind, proto, _, where), *_] = await loop.getaddrinfo(*address, type=socket.SOCK_STREAM)
                sock = socket.socket(family, kind, proto)
                sock.settimeout(0)
                self._pin(sock)
                await loop.sock_connect(sock, where)
                carrier, identity = await secure(sock, self._client, lane=lane, dialled=True)
                if not await self.introduce(session, carrier, identity):
                    carrier.close()
        except FrameError as error:
            log.warning("%s at %s:%d is refused: %s", session.name, *address, error)
            self._on_refused(session.name, str(error))
            _close(carrier, sock)
        except (OSError, TimeoutError) as error:
            log.debug("%s at %s:%d is not reached: %s", session.name, *address, error or "too slow")
            _close(carrier, sock)
        except asyncio.CancelledError:
            if carrier is None or session.carrier(lane) is not carrier:
                _close(carrier, sock)
            raise

    async def introduce(self, session: Session, carrier: Carrier, identity: str | None) -> bool:
        """Says hello over a carrier; whether it is used."""
        await carrier.send(Kind.HELLO, payload=[self._hello(session, carrier.lane)])
        head, payload = await carrier.receive()
        if head.kind is Kind.REFUSE:
            why = bytes(payload).decode(errors="replace")
            log.debug("%s does not want a connection: %s", session.name, why)
            if why == TAKEN:
                self.conflict = f"{session.name} says: {why}"
            return False
        if head.kind is not Kind.WELCOME:
            raise FrameError(f"a hello that is answered with {head.kind.name}")
        hello = Hello.parse(parse_json(payload))
        if hello.name != session.name or hello.run != self.run_id or (identity is not None and identity != hello.id):
            raise FrameError(f"a node that is not {session.name}, but {hello.name}")
        now = session.carrier(carrier.lane)
        if now and now.via is None and not (now.dialled or self.name < session.name):
            return False  # the peer's own connection came first, and counts
        self._meet(session, hello)
        session.attach(carrier, hello.position_for(self.life))
        return True

    # News ---

    async def _keep_telling(self) -> None:
        """Tells everybody whom this node reaches straight and where nodes are: when that changes, and now and then."""
        while True:
            change = self.change
            reaches = {
                name: round(session.round_trip_s, 6)
                for name, session in self.sessions.items()
                if session.direct(Lane.CONTROL)
            }
            known = {**self.addresses, self.name: self.own_addresses}
            told = {"reaches": reaches, "addresses": known, "step_s": self.step_s, "links": self.links()}
            news = json.dumps(told).encode()
            for name in reaches:
                self.sessions[name].tell(Kind.NEWS, payload=news)
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(NEWS_EVERY_S):
                    await change.wait()

    def news(self, session: Session, found: dict[str, Any]) -> None:
        reaches, addresses, links = found.get("reaches"), found.get("addresses"), found.get("links")
        if not isinstance(reaches, dict) or not isinstance(addresses, dict) or not isinstance(links, dict):
            raise FrameError("news that are none")
        session.links = links
        step_s = found.get("step_s")
        session.step_s = float(step_s) if isinstance(step_s, int | float) else 0.0
        before = session.reaches
        session.reaches = {
            name: float(seconds)
            for name, seconds in reaches.items()
            if name in self.sessions and isinstance(seconds, int | float)
        }
        for name, where in addresses.items():
            if name in self.sessions and name not in self.addresses and where:
                self.addresses[name] = parse_addresses(where)
        if before.keys() != session.reaches.keys():
            self.change.set()
            self.change = asyncio.Event()

    def links(self) -> dict[str, dict[str, float]]:
        """What this node has measured of its own links."""
        return {
            name: {"round_trip_s": round(session.least_round_trip_s, 6), "rate": round(session.rate)}
            for name, session in self.sessions.items()
            if session.direct(Lane.CONTROL)
        }

    # The end ---

    async def flush(self, seconds: float) -> None:
        """Waits until all that was sent to those who are reached has arrived, but not for longer."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await asyncio.gather(*(session.flushed() for session in self.sessions.values()))

    async def close(self) -> None:
        for sock in self._listening:
            sock.close()
        tasks = list(self._tasks)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        for sock in self._knocking:
            sock.close()
        await asyncio.gather(*(session.close() for session in self.sessions.values()))


def _own_host(host: str) -> str:
    """By which name this machine may be dialled, as far as it can tell by itself."""
    if host not in ("0.0.0.0", "::", ""):  # noqa: S104 - compared with, not bound to
        return host
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sock:
        try:
            sock.connect(("192.0.2.1", 9))  # sends nothing: the system says which address it would use
            return str(sock.getsockname()[0])
        except OSError:
            return "127.0.0.1"


def _close(carrier: Carrier | None, sock: socket.socket | None) -> None:
    if carrier:
        carrier.close()
    elif sock:
        sock.close()
