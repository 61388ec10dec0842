"""Handover: a node that is new, or was unreachable for very long, shares no agreement with the others.  It receives
their state from one of them, its host.

It asks once, and the host streams the state in pieces.  Received pieces stay when the view changes or the host leaves:
every host of an agreement holds the same bytes, so the node asks the next one for the rest.  A state that is not finite
is refused, and so is its host from then on.
"""

import asyncio
import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np
import safetensors
import safetensors.numpy
import torch
from numpy.typing import NDArray

from atoll.collectives import Body
from atoll.membership import View
from atoll.state import Saved
from atoll.strategies.replica import MOST_WORK, Replica, Work
from atoll.strategies.rounds.lineage import Agreement, Common
from atoll.strategies.talk import Spawn
from atoll.trace import ContributionRefused
from atoll.vectors import Numbers, Vector, all_finite, bytes_of, copied, stored
from atoll.world.base import Lane, Message
from atoll.world.hearing import hear

__all__ = ["Handed", "Handover"]

ASK, STATE = "state please", "state"
PIECE_BYTES, LEAST_PIECE_BYTES, PIECES = 4 << 20, 4 << 10, 16
"""How large pieces are, at most and at least, and how many there are at least between: each that arrives stays."""
SETTLE_S = 120.0
"""How long a host waits until it is in the guest's view and at a step boundary."""
MEMORY = -1
"""The place of the optimiser state, which is each host's own and comes last."""


@dataclass(frozen=True, slots=True)
class Handed:
    """The state that a node received."""

    agreement: Agreement
    held: list[Vector]
    """A vector for each block."""
    buffers: Numbers
    work: Work
    memory: Saved
    steps: int
    """The run's step."""


class Handover:
    """One node's part in handing over, as host and as guest.

    Args:
        replica: its model.
        sizes: how many values each block has.
        dtype: the number format in which they are kept, and handed over.
        buffers: how many buffers the model has.
        held: returns this node's values of the agreement that its view continues from, one vector per block, and its
            buffers; `None` while that is not settled.
        home: where values are kept.
        optimizer: whether to ask for the host's optimiser state too.
    """

    def __init__(
        self,
        replica: Replica,
        sizes: list[int],
        dtype: torch.dtype,
        buffers: int,
        held: Callable[[], list[Vector] | None],
        *,
        home: torch.device,
        optimizer: bool = False,
    ) -> None:
        self._replica = replica
        self._sizes = sizes
        self._dtype = dtype
        self._home = home
        self._buffers = buffers
        self._held = held
        self._optimizer = optimizer
        self._spawn: Spawn | None = None
        self._changed = asyncio.Event()
        self._asking: asyncio.Task[None] | None = None
        self._part: tuple[Agreement, NDArray[np.uint8], int] | None = None
        """The agreement in transfer, and how much of it has arrived."""
        self._pieces: asyncio.Queue[tuple[str, str, dict[str, int], Body]] = asyncio.Queue()
        """The pieces that have arrived: the host, the view, the description, and the bytes."""
        self.handed: Handed | None = None
        """The complete state, once it has arrived."""
        self.distrusted: set[str] = set()
        """Hosts whose state had to be refused."""

    def start(self, spawn: Spawn) -> None:
        self._spawn = spawn
        spawn(hear(self._replica.world, ASK, self._serve))
        spawn(hear(self._replica.world, STATE, self._hear_piece))

    @property
    def is_under_way(self) -> bool:
        return self._asking is not None

    @property
    def taking(self) -> Agreement | None:
        """What is coming, if a part of it is there."""
        return self._part[0] if self._part and self._part[2] else None

    def changed(self) -> None:
        """There is another view, or what this node holds is settled."""
        self._changed.set()
        self._changed = asyncio.Event()

    # As a guest ---

    def ask(self, host: str, view: View, common: Common) -> None:
        """Asks a member of a view for the state that the view continues from."""
        assert self._spawn is not None
        self._asking = self._spawn(self._take(host, view, common))

    def end(self) -> None:
        """Ends the request: the state has arrived or is no longer needed."""
        if self._asking:
            self._asking.cancel()
        self._asking = self.handed = None
        self._pieces = asyncio.Queue()

    async def _take(self, host: str, view: View, common: Common) -> None:
        peer = self._replica.world.peer(host)
        model = self._dtype.itemsize * sum(self._sizes)
        size = model + 4 * self._buffers
        if self._part is None or self._part[0] != common.agreement:
            self._part = common.agreement, np.empty(size, dtype=np.uint8), 0
        _, have, done = self._part
        steps = 0
        await peer.send(ASK, _request(view, done), lane=Lane.CONTROL)
        while done < size:
            head, body = await self._piece(host, view)
            start, steps = head["from"], head["steps"]
            if start != done or not 0 < len(body) <= size - done or not 0 <= steps <= MOST_WORK:
                self._refuse(view, host, f"{len(body)} bytes at {start} of a state of {size}, {done} are here")
                return
            have[done : done + len(body)] = np.frombuffer(body, dtype=np.uint8)
            done += len(body)
            self._part = common.agreement, have, done
        offload = self._replica.world.offload
        buffers = have[model:].view(np.float32).copy()  # a view would keep all of `have`
        held = await offload(lambda: self._blocks(have[:model]))
        if not np.isfinite(buffers).all() or not await offload(lambda: all(map(all_finite, held))):
            self._refuse(view, host, "a state that is not finite")
            return
        memory = await self._take_memory(host, view) if self._optimizer else {}
        self.handed = Handed(common.agreement, held, buffers, common.work, memory, steps)
        self._part = None

    def _blocks(self, data: NDArray[np.uint8]) -> list[Vector]:
        """The blocks of a state that has arrived, where they are kept."""
        values = torch.split(torch.from_numpy(data).view(self._dtype), self._sizes)
        return [stored(copied(each), self._dtype, self._home) for each in values]

    async def _take_memory(self, host: str, view: View) -> Saved:
        await self._replica.world.peer(host).send(ASK, _request(view, MEMORY), lane=Lane.CONTROL)
        _, body = await self._piece(host, view)
        offload = self._replica.world.offload
        try:
            memory = await offload(lambda: safetensors.numpy.load(bytes(body)))
        except safetensors.SafetensorError as error:
            self._record(view, f"{host}: {error}")
            return {}
        if not all(np.isfinite(values).all() for values in memory.values() if values.dtype.kind == "f"):
            self._record(view, f"{host}: what its optimiser remembers is not finite")
            return {}
        return memory

    async def _piece(self, host: str, view: View) -> tuple[dict[str, int], Body]:
        """The next piece that a host sends for a view."""
        while True:
            sender, told, head, body = await self._pieces.get()
            if (sender, told) == (host, view.name):
                return head, body

    def _hear_piece(self, message: Message) -> None:
        """Drops pieces that are not expected, because they belong to an earlier view."""
        said = json.loads(message.head)
        head = {key: int(said[key]) for key in ("from", "steps")}
        if self._asking is not None and not self._asking.done():
            self._pieces.put_nowait((message.sender, str(said["view"]), head, message.body))

    def _refuse(self, view: View, host: str, why: str) -> None:
        """The node stays alone until the next view, and then asks another host."""
        self._part = None
        self.distrusted.add(host)
        self._record(view, f"{host}: {why}")
        self._replica.group.object()

    def _record(self, view: View, why: str) -> None:
        world = self._replica.world
        world.record(ContributionRefused(at=world.now, node=world.name, name=f"state {view.name}", why=why))

    # As a host ---

    def _serve(self, message: Message) -> None:
        assert self._spawn is not None
        asked = json.loads(message.head)
        view, start, number = str(asked["view"]), int(asked["from"]), int(asked["number"])
        self._spawn(self._give(message.sender, view, number, max(start, MEMORY)))

    async def _give(self, guest: str, view: str, number: int, start: int) -> None:
        replica, peer = self._replica, self._replica.world.peer(guest)
        try:
            async with asyncio.timeout(SETTLE_S):
                while replica.group.view.number < number or (replica.group.view.name == view and self._held() is None):
                    await self._changed.wait()
        except TimeoutError:
            return  # the guest asks another host in the next view
        if replica.group.view.name != view:
            return
        if start == MEMORY:
            memory = await replica.world.offload(lambda: safetensors.numpy.save(replica.memory()))
            await peer.send(STATE, _head(view, MEMORY, 0), memory)
            return
        held, steps = self._held(), replica.global_step
        assert held is not None
        for place, piece in _pieces(held, start):
            if replica.group.view.name != view:
                return
            await peer.send(STATE, _head(view, place, steps), piece)


def _pieces(held: list[Vector], start: int) -> Iterator[tuple[int, memoryview]]:
    """The bytes of vectors from a place on, and where each piece begins; nothing is copied."""
    begin, size = 0, max(LEAST_PIECE_BYTES, min(PIECE_BYTES, sum(vector.nbytes for vector in held) // PIECES))
    for vector in held:
        length = vector.nbytes
        if start < begin + length:
            data = bytes_of(vector)
            for place in range(max(0, start - begin), length, size):
                yield begin + place, data[place : place + size]
        begin += length


def _head(view: str, place: int, steps: int) -> bytes:
    """The header of a piece: its view, its start, and the host's global step."""
    return json.dumps({"view": view, "from": place, "steps": steps}, separators=(",", ":")).encode()


def _request(view: View, start: int) -> bytes:
    return json.dumps({"view": view.name, "number": view.number, "from": start}, separators=(",", ":")).encode()
