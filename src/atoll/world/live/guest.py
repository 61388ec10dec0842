"""Guests: who has an invitation and is no node yet.  Asks for a seat, or what is known of everybody's links."""

import asyncio
import json
import logging
import socket
from dataclasses import dataclass
from typing import Any

from atoll.errors import FrameError, InvitationError
from atoll.world.base import Lane
from atoll.world.live.carrier import secure
from atoll.world.live.frames import Kind, parse_json
from atoll.world.live.keys import Address, Identity, Invitation

__all__ = ["Seat", "ask_for_report", "ask_for_seat"]

log = logging.getLogger("atoll")
ASK_S = 10.0


@dataclass(frozen=True)
class Seat:
    """A place in a run: a name, what the run is about, and where others are."""

    name: str
    card: dict[str, Any]
    addresses: dict[str, list[Address]]
    age_s: float
    """How old the run is."""


async def ask_for_seat(invitation: Invitation, identity: Identity) -> Seat:
    """Asks those whom the invitation names, one after the other."""
    found = await _ask(invitation, identity, Kind.JOIN, Kind.SEAT)
    try:
        addresses = {
            str(name): [(str(host), int(port)) for host, port in where] for name, where in found["addresses"].items()
        }
        return Seat(str(found["name"]), dict(found["card"]), addresses, float(found["age_s"]))
    except (KeyError, ValueError, TypeError, AttributeError) as error:
        raise InvitationError(f"the answer is not understood ({error}): is the run of another version?") from None


async def ask_for_report(invitation: Invitation, identity: Identity) -> dict[str, Any]:
    """What is known of everybody's links."""
    return await _ask(invitation, identity, Kind.PROBE, Kind.REPORT)


async def _ask(invitation: Invitation, identity: Identity, kind: Kind, expected: Kind) -> dict[str, Any]:
    reasons = []
    for address in invitation.addresses:
        try:
            async with asyncio.timeout(ASK_S):
                return await _ask_at(address, invitation, identity, kind, expected)
        except (OSError, TimeoutError, FrameError) as error:
            reasons.append(f"{address[0]}:{address[1]}: {str(error) or 'no answer'}")
    raise InvitationError(
        "nobody whom the invitation names can be reached"
        f" ({'; '.join(reasons) or 'it names nobody'}): ask for a new one"
    )


async def _ask_at(
    address: Address, invitation: Invitation, identity: Identity, kind: Kind, expected: Kind
) -> dict[str, Any]:
    loop = asyncio.get_running_loop()
    [(family, sort, proto, _, where), *_] = await loop.getaddrinfo(*address, type=socket.SOCK_STREAM)
    sock = socket.socket(family, sort, proto)
    sock.settimeout(0)
    carrier = None
    try:
        await loop.sock_connect(sock, where)
        carrier, _ = await secure(sock, identity.context(server=False), lane=Lane.CONTROL, dialled=True)
        asked = json.dumps({"run": invitation.run_id, "id": identity.id}).encode()
        await carrier.send(kind, payload=[asked])
        head, payload = await carrier.receive()
        if head.kind is Kind.REFUSE:
            raise FrameError(bytes(payload).decode(errors="replace"))
        if head.kind is not expected:
            raise FrameError(f"a question that is answered with {head.kind.name}")
        return parse_json(payload)
    finally:
        if carrier:
            carrier.close()
        else:
            sock.close()
