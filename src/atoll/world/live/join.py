"""Guests have an invitation and are not nodes yet.  A guest asks for a seat, or for a report about all links."""

import asyncio
import json
import logging
import socket
from dataclasses import dataclass
from typing import Any

from atoll.errors import FrameError, InvitationError
from atoll.world.base import Lane
from atoll.world.live.carrier import secure
from atoll.world.live.fields import Fields, parse_addresses
from atoll.world.live.frames import Kind, parse_json, read_reason
from atoll.world.live.keys import Address, Identity, Invitation
from atoll.world.live.registry import KEY_IN_USE

__all__ = ["Refused", "Seat", "ask_for_report", "ask_for_seat"]

log = logging.getLogger("atoll")
ASK_S = 10.0
NEXT_S = 1.0
"""How long to wait for an answer before the next address is tried too."""


@dataclass(frozen=True)
class Seat:
    """A place in a run: a name, the description of the run, and the addresses of other nodes."""

    name: str
    card: dict[str, Any]
    addresses: dict[str, list[Address]]
    age_s: float
    """How old the run is."""


class Refused(InvitationError):
    """A node of the run answered and refused."""


async def ask_for_seat(invitation: Invitation, identity: Identity, wanted: str = "") -> Seat:
    """Asks the nodes that the invitation names for a seat, all of them if necessary.

    Args:
        invitation: to the run.
        identity: this machine's key.
        wanted: the seat that it had before, if any.

    Raises:
        Refused: a node answered, and no node gave a seat.
        InvitationError: no node answered.
    """
    found = await _ask(invitation, identity, Kind.JOIN, Kind.SEAT, wanted)
    try:
        fields = Fields(found, "SEAT frame")
        where = fields.table("addresses").items()
        addresses = {name: parse_addresses(each, "malformed SEAT frame") for name, each in where}
        return Seat(fields.text("name"), fields.table("card"), addresses, fields.number("age_s"))
    except FrameError as error:
        raise InvitationError(f"the answer is not understood ({error}): is the run of another version?") from None


async def ask_for_report(invitation: Invitation, identity: Identity) -> dict[str, Any]:
    """Returns the known measurements of all links."""
    return await _ask(invitation, identity, Kind.PROBE, Kind.REPORT)


async def _ask(
    invitation: Invitation, identity: Identity, kind: Kind, expected: Kind, wanted: str = ""
) -> dict[str, Any]:
    """Returns the first answer.  Addresses are tried in turn, each a moment after the one before it; earlier ones may
    still answer.
    """
    asked = {"run": invitation.run_id, "id": identity.id, **({"seat": wanted} if wanted else {})}
    asking: dict[asyncio.Task[dict[str, Any]], Address] = {}
    waiting = list(invitation.addresses)
    reasons = []
    refused: Refused | None = None
    try:
        while asking or waiting:
            if waiting:
                address = waiting.pop(0)
                asking[asyncio.create_task(_ask_at(address, identity, kind, expected, asked))] = address
            done, _ = await asyncio.wait(
                asking, timeout=NEXT_S if waiting else None, return_when=asyncio.FIRST_COMPLETED
            )
            for task in done:
                host, port = asking.pop(task)
                try:
                    return task.result()
                except Refused as error:
                    if KEY_IN_USE in str(error):  # other nodes may not have met the process that uses it
                        raise
                    refused = error
                except (OSError, TimeoutError, ValueError, OverflowError, FrameError) as error:
                    reasons.append(f"{host}:{port}: {str(error) or 'no answer'}")
    finally:
        for task in asking:
            task.cancel()
        await asyncio.gather(*asking, return_exceptions=True)
    if refused:
        raise refused
    raise InvitationError(
        "nobody whom the invitation names can be reached"
        f" ({'; '.join(reasons) or 'it names nobody'}): ask for a new one"
    )


async def _ask_at(
    address: Address, identity: Identity, kind: Kind, expected: Kind, asked: dict[str, Any]
) -> dict[str, Any]:
    async with asyncio.timeout(ASK_S):
        return await _ask_now(address, identity, kind, expected, asked)


async def _ask_now(
    address: Address, identity: Identity, kind: Kind, expected: Kind, asked: dict[str, Any]
) -> dict[str, Any]:
    loop = asyncio.get_running_loop()
    [(family, sort, proto, _, where), *_] = await loop.getaddrinfo(*address, type=socket.SOCK_STREAM)
    sock = socket.socket(family, sort, proto)
    sock.settimeout(0)
    carrier = None
    try:
        await loop.sock_connect(sock, where)
        carrier, _ = await secure(sock, identity.context(server=False), lane=Lane.CONTROL, dialled=True)
        await carrier.send(kind, payload=[json.dumps(asked).encode()])
        head, payload = await carrier.receive()
        if head.kind is Kind.REFUSE:
            raise Refused(read_reason(payload))
        if head.kind is not expected:
            raise FrameError(f"a question that is answered with {head.kind.name}")
        return parse_json(payload)
    finally:
        if carrier:
            carrier.close()
        else:
            sock.close()
