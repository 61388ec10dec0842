"""Handing over: a node that has nothing in common with the others, because it is new or was away for very long, is sent
what they hold by one of them.

It comes in pieces, each asked for, so that what has arrived stays when the view changes or the host goes away: every
host of an agreement holds the same bytes, and the next one is asked for the rest.
"""

import asyncio
import json
from collections.abc import Callable

import numpy as np
import safetensors
import safetensors.numpy

from atoll.exchange import Vector
from atoll.group import View
from atoll.saved import Saved
from atoll.strategy.lineage import Agreement
from atoll.strategy.replica import Replica, Work
from atoll.strategy.talk import Spawn
from atoll.trace import ContributionRefused
from atoll.world.base import Lane, Message
from atoll.world.hearing import hear

__all__ = ["Handed", "Handover"]

ASK = "state please"
PIECE_BYTES = 1 << 20
MEMORY = -1
"""The place of what the optimiser remembers, which is each host's own and comes last."""


class Handed:
    """What a node was handed."""

    def __init__(self, agreement: Agreement, values: Vector, work: Work, memory: Saved) -> None:
        self.agreement = agreement
        self.values = values
        self.work = work
        self.memory = memory


class Handover:
    """One node's part in handing over, as host and as guest.

    Args:
        replica: its model.
        held: gives what all members of its view agreed on last.
        optimizer: whether what the host's optimiser remembers is asked for too.
    """

    def __init__(self, replica: Replica, held: Callable[[], Vector], *, optimizer: bool = False) -> None:
        self._replica = replica
        self._held = held
        self._optimizer = optimizer
        self._spawn: Spawn | None = None
        self._view_changed = asyncio.Event()
        self._asking: asyncio.Task[None] | None = None
        self._part: tuple[Agreement, bytearray] | None = None
        self.handed: Handed | None = None
        """What has come, whole."""

    def start(self, spawn: Spawn) -> None:
        self._spawn = spawn
        spawn(hear(self._replica.world, ASK, self._serve))

    @property
    def is_under_way(self) -> bool:
        return self._asking is not None

    def view_changed(self) -> None:
        self._view_changed.set()
        self._view_changed = asyncio.Event()

    # As a guest ---

    def ask(self, host: str, view: View, agreement: Agreement) -> None:
        """Has what the members of a view hold sent by one of them."""
        assert self._spawn is not None
        self._asking = self._spawn(self._take(host, view, agreement))

    def end(self) -> None:
        """What was asked for is not wanted any more, or is there."""
        if self._asking:
            self._asking.cancel()
        self._asking = self.handed = None

    async def _take(self, host: str, view: View, agreement: Agreement) -> None:
        peer = self._replica.world.peer(host)
        if self._part is None or self._part[0] != agreement:
            self._part = agreement, bytearray()
        have, size = self._part[1], 4 * len(self._held())
        work = self._replica.work
        while len(have) < size:
            await peer.send(ASK, _request(view, len(have)), lane=Lane.CONTROL)
            message = await peer.receive(f"state {view.name}")
            counted = np.frombuffer(message.head, dtype=np.int64) if len(message.head) == work.nbytes else None
            if counted is None or not 0 < len(message.body) <= size - len(have):
                self._refuse(view, f"{host}: {len(message.body)} bytes of a state of {size}")
                return
            have += message.body
            work = counted
        memory: Saved = {}
        if self._optimizer:
            await peer.send(ASK, _request(view, MEMORY), lane=Lane.CONTROL)
            message = await peer.receive(f"state {view.name}")
            try:
                memory = safetensors.numpy.load(bytes(message.body))
            except safetensors.SafetensorError as error:
                self._refuse(view, f"{host}: {error}")
        self.handed = Handed(agreement, np.frombuffer(bytes(have), dtype=np.float32), work, memory)
        self._part = None

    def _refuse(self, view: View, why: str) -> None:
        """It stays alone until there is another view, and then asks anew."""
        self._part = None
        world = self._replica.world
        world.record(ContributionRefused(at=world.now, node=world.name, name=f"state {view.name}", why=why))

    # As a host ---

    def _serve(self, message: Message) -> None:
        assert self._spawn is not None
        asked = json.loads(message.head)
        view, start, number = str(asked["view"]), int(asked["from"]), int(asked["number"])
        self._spawn(self._give(message.sender, view, number, max(start, MEMORY)))

    async def _give(self, guest: str, view: str, number: int, start: int) -> None:
        replica = self._replica
        while replica.group.view.number < number:
            await self._view_changed.wait()
        if replica.group.view.name != view:
            return
        if start == MEMORY:
            body = safetensors.numpy.save(replica.memory())
        else:
            body = self._held().view(np.uint8)[start : start + PIECE_BYTES].tobytes()
        await replica.world.peer(guest).send(f"state {view}", replica.work.tobytes(), body)


def _request(view: View, start: int) -> bytes:
    return json.dumps({"view": view.name, "number": view.number, "from": start}, separators=(",", ":")).encode()
