"""The registry of a node answers guests: processes that have an invitation and are not nodes of the run."""

import asyncio
import contextlib
import json
from collections.abc import Callable
from typing import Any, Protocol

from atoll.errors import FrameError
from atoll.world.live.carrier import Carrier
from atoll.world.live.fields import Fields
from atoll.world.live.frames import Kind
from atoll.world.live.keys import Address, Identity
from atoll.world.live.session import Session

__all__ = ["KEY_IN_USE", "Registry"]

ALL_TAKEN = "all seats are taken"
KEY_IN_USE = "the key is in use by another process that is here"
RESERVED_S = 30.0
"""How long an assigned seat is reserved for its key."""


class Registered(Protocol):
    """The part of the host that the registry uses."""

    name: str
    run_id: str
    identity: Identity
    addresses: dict[str, list[Address]]
    own_addresses: list[Address]
    sessions: dict[str, Session]
    step_s: float
    age: Callable[[], float]

    def links(self) -> dict[str, dict[str, float]]: ...


class Registry:
    """A node's registry: assigns seats, and reports the measurements of links."""

    def __init__(self, host: Registered) -> None:
        self._host = host
        self.card: dict[str, Any] = {}
        """The description of the run, for nodes that join."""
        self._reserved: dict[str, tuple[str, float]] = {}
        """For each reserved name, the key and the end of the reservation."""

    async def answer(self, carrier: Carrier, kind: Kind, asked: dict[str, Any], identity: str | None) -> None:
        """Answers a JOIN or PROBE frame of a guest."""
        fields = Fields(asked, f"{kind.name} frame")
        if fields.text("run") != self._host.run_id:
            raise FrameError("a guest of another run")
        if kind is Kind.PROBE:
            await carrier.send(Kind.REPORT, payload=[json.dumps(self.report()).encode()])
        else:
            wanted = fields.text("seat") if "seat" in asked else ""
            seat, why = self._find_seat(identity or fields.text("id"), wanted)
            if why:
                await carrier.send(Kind.REFUSE, payload=[why.encode()])
                return
            answer = {
                "name": seat,
                "card": self.card,
                "addresses": {**self._host.addresses, self._host.name: self._host.own_addresses},
                "age_s": self._host.age(),
            }
            await carrier.send(Kind.SEAT, payload=[json.dumps(answer).encode()])
        with contextlib.suppress(OSError, FrameError):
            await carrier.receive()  # until the guest has read it and disconnects

    def _find_seat(self, identity: str, wanted: str) -> tuple[str, str]:
        """Returns a name for a key, or why no name is free.  Order of preference: the name that the key had, one that
        no key had, one whose holder is unreachable; among equals, the name that it asks for.
        """
        now = asyncio.get_running_loop().time()
        heard = {name for other in self._host.sessions.values() for name in other.reaches}

        def is_here(session: Session) -> bool:
            return session.reachable or session.name in heard

        def is_free(session: Session) -> bool:
            holder, until = self._reserved.get(session.name, ("", 0.0))
            return not is_here(session) and (until < now or holder == identity)

        sessions = self._host.sessions.values()
        if identity == self._host.identity.id or any(each.id == identity and is_here(each) for each in sessions):
            return "", KEY_IN_USE
        seats = [session for session in sessions if session.id == identity or is_free(session)]
        found = min(
            seats, key=lambda each: (each.id != identity, each.id is not None, each.name != wanted), default=None
        )
        if found is None:
            return "", ALL_TAKEN
        self._reserved[found.name] = identity, now + RESERVED_S
        return found.name, ""

    def report(self) -> dict[str, Any]:
        """Returns the measurements of all links: its own, and those that reachable peers reported."""
        nodes = {self._host.name: {"step_s": self._host.step_s, "links": self._host.links()}}
        for name, session in self._host.sessions.items():
            if session.reachable:
                nodes[name] = {"step_s": session.step_s, "links": session.links}
        return {"nodes": nodes, "card": self.card}
