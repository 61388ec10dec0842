"""Hosts: a node's end of all its links.  A host listens, dials, finds relay routes, and keeps a session with each peer.

Either of two nodes may dial the other.  If both do, they keep the connection of the node whose name comes first.  While
there is no direct connection, a new attempt begins every half second, even if earlier ones are still pending.
"""

import asyncio
import contextlib
import json
import logging
import os
import socket
import time
from collections.abc import Callable, Coroutine, Sequence
from functools import partial
from typing import Any

from atoll.errors import FrameError
from atoll.world.base import Lane, Message
from atoll.world.live.carrier import Carrier
from atoll.world.live.complaints import Complaints
from atoll.world.live.dialer import DIAL_EVERY_S, Dialer
from atoll.world.live.fields import MOST_ADDRESSES, printable
from atoll.world.live.frames import Kind, parse_json, read_reason
from atoll.world.live.hello import Hello
from atoll.world.live.keys import Address, Identity, Invitation
from atoll.world.live.listener import Listener
from atoll.world.live.news import News
from atoll.world.live.registry import KEY_IN_USE, Registry
from atoll.world.live.routes import RelayRoutes
from atoll.world.live.session import Session
from atoll.world.live.strands import MOST_STRANDS, Strand, Strands

__all__ = ["TAKEN", "Host", "best_congestion"]

log = logging.getLogger("atoll")

NEWS_EVERY_S = 1.0
AGAIN_S = 1.0
"""A background task that fails with an unexpected error restarts after this time."""
TAKEN = "the name is in use by another key"
DESCRIPTORS = 512
"""How many connections bulk may take: half of what most systems let a process have open."""
CONFLICT_S = 2.0
"""How long a refusal is remembered; an attempt is made every half second."""


def best_congestion() -> str:
    """Returns BBR if the system permits it: BBR does not treat every lost packet as congestion.  Otherwise returns the
    empty string, which selects the system's default.
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
        name: the node's name.
        names: the names of all seats.
        invitation: the run's secret.
        identity: the node's key.
        deliver: is called with every message, its session, and the time when its first bytes arrived.
        encrypted: whether to use TLS.
        congestion: the TCP congestion control; empty: the system's default.
        on_reach: is called when a peer becomes reachable or unreachable.
        on_refused: is called with the sender and the reason when something was refused.
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
        self._complaints = Complaints(on_refused)
        self._congestion = congestion
        self.life = int.from_bytes(os.urandom(6), "big") + 1
        strands = max(1, min(MOST_STRANDS, DESCRIPTORS // len(names)))
        self.sessions = {each: Session(each, host=self, most_strands=strands) for each in names if each != name}
        self.addresses: dict[str, list[Address]] = {}
        """The known addresses at which peers listen."""
        self.registry = Registry(self)
        self.age: Callable[[], float] = lambda: 0.0
        """How old the run is."""
        self.step_s = 0.0
        """How long a training step of this node takes; other nodes use it for planning."""
        self._conflict = "", 0.0
        self.own_addresses: list[Address] = []
        self.sent_bytes = 0
        self.routes = RelayRoutes(self)
        self._tasks: set[asyncio.Task[Any]] = set()
        self._strands = Strands()
        self.listener = Listener(self, identity.context(server=True) if encrypted else None)
        self.change = asyncio.Event()
        """Set, and replaced by a new event, when a route to a peer appears or disappears."""
        dialer = Dialer(self, identity.context(server=False) if encrypted else None)
        for session in self.sessions.values():
            self.keep(partial(dialer.keep, session, Lane.CONTROL), f"dialling {session.name}")
            self.keep(partial(dialer.keep, session, Lane.BULK), f"dialling {session.name} for bulk")
            self.keep(partial(self.routes.keep, session), f"a way around to {session.name}")
        self.keep(self._keep_telling, "news")

    def spawn(self, work: Coroutine[Any, Any, Any], name: str) -> asyncio.Task[Any]:
        task = asyncio.create_task(work, name=name)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    def keep(self, work: Callable[[], Coroutine[Any, Any, None]], name: str) -> None:
        """Runs a task until the host closes, and restarts it after errors."""

        async def keep() -> None:
            while True:
                try:
                    await work()
                except Exception:
                    log.exception("%s: %s has failed, and begins again", self.name, name)
                    await asyncio.sleep(AGAIN_S)

        self.spawn(keep(), name)

    # Called by sessions ---

    def count(self, size: int) -> None:
        self.sent_bytes += size

    def deliver(self, session: Session, message: Message, since: float) -> None:
        self._deliver(message, session, since)

    def refused(self, who: str, why: str) -> None:
        """Reports that something a peer sent was refused."""
        self._complaints.say(who, why)

    def refused_by(self, session: Session, why: str) -> None:
        """A peer refuses a connection with this node."""
        log.debug("%s does not want a connection: %s", session.name, why)
        if why in (TAKEN, KEY_IN_USE):
            self._conflict = f"{session.name} says: {why}", time.monotonic()

    @property
    def conflict(self) -> str:
        """Why peers refuse this node, if its name or its key is in use; else empty."""
        why, at = self._conflict
        return why if time.monotonic() - at < CONFLICT_S else ""

    def reach_changed(self, session: Session, *, was_reachable: bool) -> None:
        if not session.direct(Lane.CONTROL):
            self.routes.closed(session.name)
        if session.reachable != was_reachable:
            self._on_reach(session.name, session.reachable)
        self.change.set()
        self.change = asyncio.Event()

    async def wait_straight(self, name: str, lane: Lane) -> None:
        """Returns when a lane has a direct connection to a peer."""
        while self.sessions[name].direct(lane) is None:
            await self.change.wait()

    async def wait_for_change(self) -> None:
        """Returns when a route to a peer appears or disappears."""
        await self.change.wait()

    # Incoming connections ---

    def pin(self, sock: socket.socket) -> None:
        """Sets the chosen congestion control on a socket."""
        if self._congestion:
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_CONGESTION, self._congestion.encode())

    async def welcome(self, carrier: Carrier, identity: str | None) -> bool:
        """Answers an incoming connection; returns whether it is accepted."""
        head, payload = await carrier.receive()
        if head.kind in (Kind.JOIN, Kind.PROBE) and carrier.via is None:
            await self.registry.answer(carrier, head.kind, parse_json(payload), identity)
            return False
        if head.kind is not Kind.HELLO:
            raise FrameError(f"a connection that begins with {head.kind.name}")
        hello = Hello.parse(parse_json(payload))
        if hello.run != self.run_id:
            raise FrameError("a node of another run")
        session = self.sessions.get(hello.name)
        if session is None:
            raise FrameError(f"there is no place for a node called {printable(repr(hello.name), 64)} in this run")
        if identity is not None and identity != hello.id:
            raise FrameError(f"{hello.name} shows another key than it has")
        why = self._why_not(session, carrier, hello)
        if why:
            await carrier.send(Kind.REFUSE, payload=[why.encode()])
            return False
        carrier.lane = hello.lane
        whole = self._strands.add(session.name, hello.strand, carrier, life=hello.life)
        if whole is None:
            return True
        try:
            self._meet(session, hello)
            for strand in whole.strands:
                await strand.send(Kind.WELCOME, payload=[self._hello(session, hello.lane)])
            session.attach(whole, hello.position_for(self.life))
        except BaseException:
            whole.close()
            raise
        return True

    def _why_not(self, session: Session, carrier: Carrier, hello: Hello) -> str:
        """Returns why a connection is refused; empty if it is accepted."""
        now = session.carrier(hello.lane)
        holder = self._holder(session, hello)
        if holder:
            return holder
        if hello.lane is Lane.BULK and (session.life != hello.life or not session.reachable):
            return "control comes first"
        if now is None or session.life != hello.life:
            return ""
        if carrier.via is not None and now.via is None:
            return "there is a straight way"
        alike = (carrier.via is None) == (now.via is None) and len(now.strands) == hello.strand.count
        if alike and now.dialled and self.name < session.name:
            return "there is a connection"
        if alike and not now.dialled and session.age_s(hello.lane) < DIAL_EVERY_S:
            return "one of your connections was quicker"
        return ""

    def _holder(self, session: Session, hello: Hello) -> str:
        """Returns why a node is refused if another process has its seat: that one keeps it until it is unreachable."""
        if not session.reachable:
            return ""
        if session.id is not None and session.id != hello.id:
            return TAKEN
        return KEY_IN_USE if session.life != hello.life else ""

    def _meet(self, session: Session, hello: Hello) -> None:
        session.meet(hello.life)
        session.id, session.listen = hello.id, hello.listen
        if hello.listen:
            self.addresses[session.name] = hello.listen

    def _hello(self, session: Session, lane: Lane, strand: Strand | None = None) -> bytes:
        strand = strand or Strand()
        found = {
            "run": self.run_id,
            "name": self.name,
            "id": self.identity.id,
            "lane": lane.value,
            "life": self.life,
            "your_life": session.life,
            "have": session.position(lane),
            "listen": self.own_addresses,
            "strand": strand.place,
            "strands": strand.count,
            "together": strand.together,
        }
        return json.dumps(found).encode()

    # Outgoing connections ---

    async def greet(self, session: Session, carrier: Carrier, strand: Strand | None = None) -> None:
        """Sends HELLO over a connection."""
        await carrier.send(Kind.HELLO, payload=[self._hello(session, carrier.lane, strand)])

    async def introduce(self, session: Session, carrier: Carrier, identity: str | None) -> bool:
        """Waits for the answers to HELLO; returns whether the carrier is used."""
        strands = carrier.strands
        for strand in strands:
            head, payload = await strand.receive()
            if head.kind is Kind.REFUSE:
                self.refused_by(session, read_reason(payload))
                return False
            if head.kind is not Kind.WELCOME:
                raise FrameError(f"a hello that is answered with {head.kind.name}")
            hello = Hello.parse(parse_json(payload))
            there = printable(repr(hello.name), 64)
            if hello.name != session.name or hello.run != self.run_id or identity not in (None, hello.id):
                raise FrameError(f"a node that is not {session.name}, but {there}")
        holder = self._holder(session, hello)
        if holder:
            await strands[0].send(Kind.REFUSE, payload=[holder.encode()])
            return False
        now = session.carrier(carrier.lane)
        is_alike = now is not None and now.via is None and len(now.strands) == len(strands)
        if now and is_alike and not (now.dialled or self.name < session.name):
            return False  # the peer's own connection came first, and is kept
        self._meet(session, hello)
        session.attach(carrier, hello.position_for(self.life))
        return True

    # News ---

    async def _keep_telling(self) -> None:
        """Sends NEWS to direct peers, after each change and once a second: the direct peers, and known addresses."""
        while True:
            change = self.change
            reaches = {
                name: round(session.round_trip_s, 6)
                for name, session in self.sessions.items()
                if session.direct(Lane.CONTROL)
            }
            known = {**self.addresses, self.name: self.own_addresses}
            said = {name: self.sessions[name].listen for name in reaches if self.sessions[name].listen}
            news = News(reaches=reaches, addresses=known, said=said, step_s=self.step_s, links=self.links()).pack()
            for name in reaches:
                self.sessions[name].tell(Kind.NEWS, payload=news)
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(NEWS_EVERY_S):
                    await change.wait()

    def news(self, session: Session, found: dict[str, Any]) -> None:
        """Handles a NEWS frame: which nodes a peer reaches, and where nodes listen."""
        news = News.parse(found, self.sessions)
        session.links, session.step_s = news.links, news.step_s
        before, session.reaches = session.reaches, news.reaches
        for name, where in news.addresses.items():
            if where and not self.addresses.get(name):
                self.addresses[name] = where
        for name, where in news.said.items():
            if not self.sessions[name].direct(Lane.CONTROL):
                known = dict.fromkeys([*where, *self.addresses.get(name, [])])
                self.addresses[name] = list(known)[:MOST_ADDRESSES]
        if before.keys() != session.reaches.keys():
            self.change.set()
            self.change = asyncio.Event()

    def links(self) -> dict[str, dict[str, float]]:
        """Returns the measurements of this node's own links."""
        return {
            name: {"round_trip_s": round(session.least_round_trip_s, 6), "rate": round(session.rate)}
            for name, session in self.sessions.items()
            if session.direct(Lane.CONTROL)
        }

    # The end ---

    async def flush(self, seconds: float) -> None:
        """Waits until reachable peers have acknowledged all messages, for `seconds` at most."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await asyncio.gather(*(session.flushed() for session in self.sessions.values()))

    async def close(self) -> None:
        tasks = list(self._tasks)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        self.listener.close()
        self._strands.close()
        await asyncio.gather(*(session.close() for session in self.sessions.values()))
