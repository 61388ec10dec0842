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
from atoll.world.base import Buffer, Lane, Message
from atoll.world.live.boxes import Position
from atoll.world.live.carrier import Carrier, secure
from atoll.world.live.frames import Head, Kind, parse_json
from atoll.world.live.keys import Address, Identity, Invitation
from atoll.world.live.session import LANES, Session
from atoll.world.live.tunnel import Tunnel, parse_envelope

__all__ = ["Host", "best_congestion"]

log = logging.getLogger("atoll")

DIAL_EVERY_S = 0.5
ATTEMPTS = 6
"""At one time, for one lane of one peer."""
HANDSHAKE_S = 5.0
MOST_STRANGERS = 64
"""Connections that have not shown who they are, at one time; more have to wait to be accepted."""
NEWS_EVERY_S = 1.0
RESERVED_S = 30.0
TAKEN = "a node of that name is here, with another key"
LATER_S = 0.3
"""Of two nodes the one whose name comes second dials so much later."""


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
        self.card: dict[str, Any] = {}
        """What the run is about, for who joins it."""
        self.age: Callable[[], float] = lambda: 0.0
        """How old the run is."""
        self.step_s = 0.0
        """How long a training step of this node takes, for who plans with it."""
        self.conflict = ""
        """Why others will not have this node, if its name is taken."""
        self._reserved: dict[str, tuple[str, float]] = {}
        """Names that were given to keys, until when."""
        self.own_addresses: list[Address] = []
        self.sent_bytes = 0
        self._listening: list[socket.socket] = []
        self._tunnels: dict[int, Tunnel] = {}
        self._tasks: set[asyncio.Task[Any]] = set()
        self._strangers = asyncio.Semaphore(MOST_STRANGERS)
        self._knocking: set[socket.socket] = set()
        """Who was accepted a moment ago."""
        self._gone: set[str] = set()
        """Who has said that it leaves."""
        self._reach_changed = asyncio.Event()
        for session in self.sessions.values():
            self._spawn(self._keep_dialling(session, Lane.CONTROL), f"dialling {session.name}")
            self._spawn(self._keep_dialling(session, Lane.BULK), f"dialling {session.name} for bulk")
            self._spawn(self._keep_tunnelling(session), f"a way around to {session.name}")
        self._spawn(self._keep_telling(), "news")

    def _spawn(self, work: Coroutine[Any, Any, Any], name: str) -> asyncio.Task[Any]:
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
        if session.direct(Lane.CONTROL):
            self._gone.discard(session.name)
        else:
            for tunnel in list(self._tunnels.values()):
                if tunnel.via == session.name:
                    self._end(tunnel)
        if session.reachable != was_reachable:
            self._on_reach(session.name, session.reachable)
        self._reach_changed.set()
        self._reach_changed = asyncio.Event()

    async def wait_straight(self, name: str, lane: Lane) -> None:
        """Returns when a lane goes straight to a peer."""
        while self.sessions[name].direct(lane) is None:
            await self._reach_changed.wait()

    async def wait_for_change(self) -> None:
        """Returns when a way to somebody has come or gone."""
        await self._reach_changed.wait()

    def left(self, session: Session) -> None:
        self._gone.add(session.name)

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
        self._spawn(self._accept(sock), "listening")

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
            self._spawn(self._receive_stranger(sock), "a stranger")

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
                welcome = await self._welcome(carrier, identity)
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

    async def _welcome(self, carrier: Carrier, identity: str | None) -> bool:
        """Answers who dials; whether it is let in."""
        head, payload = await carrier.receive()
        if head.kind in (Kind.JOIN, Kind.PROBE) and carrier.via is None:
            await self._answer_guest(carrier, head.kind, parse_json(payload), identity)
            return False
        if head.kind is not Kind.HELLO:
            raise FrameError(f"a connection that begins with {head.kind.name}")
        hello = _Hello.parse(parse_json(payload))
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

    async def _answer_guest(self, carrier: Carrier, kind: Kind, asked: dict[str, Any], identity: str | None) -> None:
        """Somebody who is no node of the run, or not yet, wants to know something."""
        if asked.get("run") != self.run_id:
            raise FrameError("a guest of another run")
        if kind is Kind.PROBE:
            await carrier.send(Kind.REPORT, payload=[json.dumps(self.report()).encode()])
        else:
            seat = self._find_seat(identity or str(asked.get("id")))
            if seat is None:
                await carrier.send(Kind.REFUSE, payload=[b"all seats are taken"])
                return
            answer = {
                "name": seat,
                "card": self.card,
                "addresses": {**self.addresses, self.name: self.own_addresses},
                "age_s": self.age(),
            }
            await carrier.send(Kind.SEAT, payload=[json.dumps(answer).encode()])
        with contextlib.suppress(OSError, FrameError):
            await carrier.receive()  # until the guest has read it and goes

    def _find_seat(self, identity: str) -> str | None:
        """A name for a key: the one that it had, or one that nobody had, or one whose holder is away."""
        now = asyncio.get_running_loop().time()

        def is_free(session: Session) -> bool:
            holder, until = self._reserved.get(session.name, ("", 0.0))
            known = any(session.name in other.reaches for other in self.sessions.values())
            return not session.reachable and not known and (until < now or holder == identity)

        seats = [session for session in self.sessions.values() if session.id == identity or is_free(session)]
        found = min(seats, key=lambda each: (each.id != identity, each.id is not None), default=None)
        if found is None:
            return None
        self._reserved[found.name] = identity, now + RESERVED_S
        return found.name

    def report(self) -> dict[str, Any]:
        """What this node knows of everybody's links, its own measurements and what others told."""
        nodes = {self.name: {"step_s": self.step_s, "links": self._links()}}
        for name, session in self.sessions.items():
            if session.reachable:
                nodes[name] = {"step_s": session.step_s, "links": session.links}
        return {"nodes": nodes, "card": self.card}

    def _links(self) -> dict[str, dict[str, float]]:
        return {
            name: {"round_trip_s": round(session.least_round_trip_s, 6), "rate": round(session.rate)}
            for name, session in self.sessions.items()
            if session.direct(Lane.CONTROL)
        }

    def _why_not(self, session: Session, carrier: Carrier, hello: "_Hello") -> str:
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

    def _meet(self, session: Session, hello: "_Hello") -> None:
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
                    attempt = self._spawn(self._dial(session, lane, address), f"an attempt to reach {session.name}")
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
                if not await self._introduce(session, carrier, identity):
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

    async def _introduce(self, session: Session, carrier: Carrier, identity: str | None) -> bool:
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
        hello = _Hello.parse(parse_json(payload))
        if hello.name != session.name or hello.run != self.run_id or (identity is not None and identity != hello.id):
            raise FrameError(f"a node that is not {session.name}, but {hello.name}")
        now = session.carrier(carrier.lane)
        if now and now.via is None and not (now.dialled or self.name < session.name):
            return False  # the peer's own connection came first, and counts
        self._meet(session, hello)
        session.attach(carrier, hello.position_for(self.life))
        return True

    # Ways around ---

    async def _keep_tunnelling(self, session: Session) -> None:
        """While a peer is not reached straight, looks for somebody who reaches it."""
        while True:
            change = self._reach_changed
            via = None if session.direct(Lane.CONTROL) else self._third(session)
            if via and self.name > session.name and not session.reachable:
                await asyncio.sleep(LATER_S)
            if via and not session.direct(Lane.CONTROL):
                for lane in LANES:
                    now = session.carrier(lane)
                    if now is None or now.closed:
                        await self._tunnel(session, lane, via)
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(DIAL_EVERY_S):
                    await change.wait()

    def _third(self, session: Session) -> Session | None:
        """Who is nearest of those that reach both."""
        found = [
            each
            for each in self.sessions.values()
            if each is not session and each.direct(Lane.CONTROL) and session.name in each.reaches
        ]
        return min(found, key=lambda each: each.round_trip_s + each.reaches[session.name], default=None)

    async def _tunnel(self, session: Session, lane: Lane, via: Session) -> None:
        tunnel = self._make_tunnel(lane, session.name, via, number=int.from_bytes(os.urandom(8), "big"), dialled=True)
        used = False
        try:
            async with asyncio.timeout(max(1.0, 8 * (via.round_trip_s + via.reaches.get(session.name, 0.0)))):
                used = await self._introduce(session, tunnel, None)
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

        tunnel = Tunnel(lane, dialled=dialled, via=via.name, me=self.name, peer=peer, number=number, send=send)
        self._tunnels[number] = tunnel
        return tunnel

    def _end(self, tunnel: Tunnel) -> None:
        self._tunnels.pop(tunnel.number, None)
        tunnel.close()

    async def relayed(self, session: Session, carrier: Carrier, head: Head, payload: memoryview) -> None:
        """A frame has come that is for somebody else, or has come through somebody else."""
        if carrier.via is not None:
            raise FrameError("an envelope inside an envelope")
        envelope = parse_envelope(payload)
        if envelope.receiver != self.name:
            await self._hand_on(session, carrier.lane, head, payload, envelope.receiver)
            return
        tunnel = self._tunnels.get(head.number)
        if tunnel is None or tunnel.closed:
            if envelope.frame[3] != Kind.HELLO or envelope.sender not in self.sessions:
                session.tell_lost(head.number)
                return
            tunnel = self._make_tunnel(carrier.lane, envelope.sender, session, number=head.number, dialled=False)
            self._spawn(self._receive_through(tunnel), f"{envelope.sender} through {session.name}")
        elif tunnel.peer != envelope.sender or tunnel.via != session.name:
            raise FrameError("an envelope for a tunnel that is somebody else's")
        tunnel.arrived(envelope.frame)

    async def _hand_on(self, session: Session, lane: Lane, head: Head, payload: memoryview, receiver: str) -> None:
        to = self.sessions.get(receiver)
        carrier = (to.direct(lane) or to.direct(Lane.CONTROL)) if to else None
        if to is None or carrier is None:
            session.tell_lost(head.number)
            return
        try:
            await carrier.send(Kind.RELAY, head.number, head.offset, [payload])
        except OSError as error:
            to.drop(carrier.lane, f"lost while handing on ({error})", carrier)
            session.tell_lost(head.number)
        else:
            self.count(len(payload))

    async def _receive_through(self, tunnel: Tunnel) -> None:
        welcome = False
        try:
            async with asyncio.timeout(HANDSHAKE_S):
                welcome = await self._welcome(tunnel, None)
        except (OSError, TimeoutError, FrameError) as error:
            log.debug("nothing came of a way through %s: %s", tunnel.via, error or "too slow")
        finally:
            if not welcome:
                self._end(tunnel)

    def tunnel_lost(self, number: int) -> None:
        tunnel = self._tunnels.get(number)
        if tunnel:
            self._end(tunnel)

    # News ---

    async def _keep_telling(self) -> None:
        """Tells everybody whom this node reaches straight and where nodes are: when that changes, and now and then."""
        while True:
            change = self._reach_changed
            reaches = {
                name: round(session.round_trip_s, 6)
                for name, session in self.sessions.items()
                if session.direct(Lane.CONTROL)
            }
            known = {**self.addresses, self.name: self.own_addresses}
            told = {"reaches": reaches, "addresses": known, "step_s": self.step_s, "links": self._links()}
            news = json.dumps(told).encode()
            for name in reaches:
                self.sessions[name].tell(Kind.NEWS, news)
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
                self.addresses[name] = _addresses(where)
        if before.keys() != session.reaches.keys():
            self._reach_changed.set()
            self._reach_changed = asyncio.Event()

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


class _Hello:
    """What a node says when it dials, and is answered with."""

    def __init__(self, found: dict[str, Any]) -> None:
        self.run = str(found["run"])
        self.name = str(found["name"])
        self.id = str(found["id"])
        self.lane = Lane(found["lane"])
        self.life = int(found["life"])
        self.your_life = int(found["your_life"])
        number, done = found["have"]
        self.have: Position = (int(number), int(done))
        self.listen = _addresses(found["listen"])

    @classmethod
    def parse(cls, found: dict[str, Any]) -> "_Hello":
        try:
            hello = cls(found)
        except (KeyError, ValueError, TypeError) as error:
            raise FrameError(f"a hello that is not whole ({error})") from None
        if hello.life <= 0 or min(hello.have) < 0:
            raise FrameError("a hello that is not whole")
        return hello

    def position_for(self, life: int) -> Position:
        """How far the peer is with what this life of the node has sent."""
        return self.have if self.your_life == life else (0, 0)


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


def _addresses(found: Any) -> list[Address]:
    try:
        return [(str(host), int(port)) for host, port in found][:8]
    except (ValueError, TypeError):
        raise FrameError("an address that is none") from None


def _close(carrier: Carrier | None, sock: socket.socket | None) -> None:
    if carrier:
        carrier.close()
    elif sock:
        sock.close()
