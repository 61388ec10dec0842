"""Everybody tells everybody the changes that it made, as they come, without rounds and without a server.

A model is x₀ + η Σ changes / N, of all nodes' changes that have arrived.  What a peer was not told yet is kept for it
and goes with the next message, so a slow link gets fewer and larger changes, and none is lost or counted twice.  What a
codec leaves out is not told yet: it stays in the node's own model meanwhile.

With bounded staleness (SSP; Ho et al., 2013) a node that is more than `bound` steps ahead of the slowest waits, for two
seconds at most.  Nobody waits for a peer that cannot be reached, nor, once it was waited for in vain, for one that says
nothing.

A node that joins is new: it has the others tell it what they began from and everything that they have changed since,
which is two models' worth from each, and which they do at once, whatever their training does.  Until it has that, it
tells nothing: what it learned on a model of its own, or on what the run began from long ago, would spoil theirs.
"""

import asyncio
import struct
from collections.abc import Callable

import numpy as np
import torch

from atoll.codecs import Codec
from atoll.collectives import Body, Lengths
from atoll.state import Saved, note, part, read_note, under
from atoll.strategies.lineage import MOST_WORK
from atoll.strategies.parts.merge import average_buffers
from atoll.strategies.parts.when import When
from atoll.strategies.replica import Quantity, Replica, Work
from atoll.strategies.talk import Spawn, Talk, record_push
from atoll.trace import ContributionRefused, Waited
from atoll.vectors import Vector, all_finite, length
from atoll.world.base import Lane, Message
from atoll.world.hearing import hear

__all__ = ["Deltas"]

CHANGE, ACKNOWLEDGEMENT, EVERYTHING, BASE = "change", "change ack", "all changes please", "what it began from"
_HEAD = struct.Struct("<Qd")  # the sender's step, seconds when it was sent
WAIT_S = 2.0
ANSWER_S = 30.0
"""Who has not acknowledged for so long has begun anew, and never will."""


class Deltas(Talk):
    """One node's part in bounded staleness.

    Args:
        replica: its model.
        when: when to tell what has changed.
        bound: how many steps a node may be ahead of the slowest; any number if it is 0.
        rate: what a change counts, of one node's share.
        codec: how changes are written; whole unless given.
    """

    def __init__(
        self, replica: Replica, *, when: When, bound: int, rate: float = 1.0, codec: Codec | None = None
    ) -> None:
        self._replica = replica
        self._when = when
        self._bound = bound
        self._share = np.float32(rate / len(replica.members))
        self._codec = codec
        peers = [name for name in replica.members if name != replica.world.name]
        self._clocks = dict.fromkeys(peers, 0)
        self._began = dict.fromkeys(peers, 0)
        """The step of this node at which each peer began: a new one is not far behind."""
        self._changed: Vector | None = None
        """All of the node's own changes."""
        self._told: dict[str, Vector] = {}
        """What of them each peer knows, or will; peers that were told the same share a vector."""
        self._busy_since_s: dict[str, float | None] = dict.fromkeys(peers)
        self._arrived: list[tuple[Vector, Vector, Work]] = []
        """Changes, the buffers of who made them, and its work."""
        self._lengths = Lengths()
        """How much peers usually change in a step."""
        self._heard = asyncio.Event()
        self._silent: set[str] = set()
        """Who was waited for in vain, and has said nothing since."""
        self._before: Vector | None = None
        self._base: Vector | None = None
        """What the run began from."""
        self._base_is_there = False
        self._answered: set[str] = set()
        """Who has told this node everything, or that it is new too."""
        self._is_new = False
        """Whether it does not know what the run began from."""
        self._new_until_s = 0.0
        self._told_at_step = 0
        self._spawn: Spawn | None = None

    def start(self, spawn: Spawn) -> None:
        self._spawn = spawn
        self._before = self._base = self._replica.read(Quantity.PARAMETERS)
        self._changed = np.zeros_like(self._before)
        self._told = dict.fromkeys(self._clocks, self._changed)
        world = self._replica.world
        spawn(hear(world, CHANGE, self._take))
        spawn(hear(world, ACKNOWLEDGEMENT, self._acknowledged))
        spawn(hear(world, EVERYTHING, self._begins_anew))
        spawn(hear(world, BASE, self._take_base))
        self._is_new, self._new_until_s = not world.is_founder, world.now + ANSWER_S
        if world.is_late:
            for name in self._clocks:
                spawn(world.peer(name).send(EVERYTHING, lane=Lane.CONTROL))

    async def after_step(self) -> bool:
        replica = self._replica
        assert self._before is not None
        assert self._changed is not None
        if self._is_new:
            return self._begin_from_base()
        change = (replica.read(Quantity.PARAMETERS) - self._before) * self._share
        if not all_finite(change):
            world = replica.world
            world.record(ContributionRefused(at=world.now, node=world.name, name="change", why="not finite"))
            change = np.zeros_like(change)
        values = self._before + change
        self._changed = self._changed + change
        if self._bound:
            await self._gate()
        arrived, self._arrived = self._arrived, []
        for change, _, work in arrived:
            values = values + change
            replica.include(work)
        replica.write(Quantity.PARAMETERS, values)
        if arrived:
            average_buffers(replica, [buffers for _, buffers, _ in arrived])
        self._before = values
        if self._when(replica, replica.steps - self._told_at_step, 0):
            self._told_at_step = replica.steps
            self._tell()
        return bool(arrived)

    def _begin_from_base(self) -> bool:
        """A node that is new goes on from what the run began from with everybody's changes, once all who can be reached
        have told it; or, after a while, with what has come, or with its own model if nothing has.
        """
        world = self._replica.world
        is_told = all(name in self._answered or not world.peer(name).reachable for name in self._clocks)
        if not (self._base_is_there and is_told) and world.now < self._new_until_s:
            return False
        assert self._base is not None
        assert self._changed is not None
        self._is_new = False
        if not self._base_is_there:
            self._before = self._replica.read(Quantity.PARAMETERS)
            return False
        arrived, self._arrived = self._arrived, []
        values = self._base
        for change, buffers, work in arrived:
            values = values + change
            self._replica.include(work)
            self._replica.write(Quantity.BUFFERS, buffers)
        self._changed = np.zeros_like(values)
        self._told = dict.fromkeys(self._clocks, self._changed)
        self._replica.write(Quantity.PARAMETERS, values)
        self._before = values
        return True

    def save(self) -> Saved:
        assert self._changed is not None
        assert self._base is not None
        known = note({"clocks": self._clocks, "began": self._began})
        return {"changed": self._changed, "base": self._base, **under("told", dict(self._told)), "known": known}

    def load(self, saved: Saved) -> None:
        self._changed, self._base, self._is_new = saved["changed"], saved["base"], False
        self._before = self._replica.read(Quantity.PARAMETERS)
        told, known = part("told", saved), read_note(saved["known"])
        for name in self._clocks:  # who is not among them is told everything
            self._told[name] = told.get(name, np.zeros_like(self._changed))
            self._clocks[name] = known["clocks"].get(name, 0)
            self._began[name] = known["began"].get(name, 0)

    async def _gate(self) -> None:
        """Waits for the slowest, for a while."""
        world, since = self._replica.world, self._replica.world.now
        try:
            async with asyncio.timeout(WAIT_S):
                while self._behind():
                    self._heard.clear()
                    await self._heard.wait()
        except TimeoutError:
            self._silent.update(self._behind())
        if world.now > since:
            world.record(Waited(at=world.now, node=world.name, since=since, why="the slowest"))

    def _behind(self) -> list[str]:
        """Who is to be waited for."""
        world, least = self._replica.world, self._replica.steps - self._bound
        return [
            name
            for name, clock in self._clocks.items()
            if clock < least and name not in self._silent and world.peer(name).reachable
        ]

    def _tell(self) -> None:
        """Tells every peer that has acknowledged what it was told before."""
        assert self._spawn is not None
        assert self._changed is not None
        written: dict[int, tuple[Vector, bytes]] = {}
        now = self._replica.world.now
        for name, since_s in self._busy_since_s.items():
            if since_s is None or now - since_s > ANSWER_S:
                told = self._told[name]
                if id(told) not in written:
                    written[id(told)] = self._write(told, self._changed)
                self._told[name], body = written[id(told)]
                self._busy_since_s[name] = now
                self._spawn(self._send(name, self._replica.steps, body))

    def _write(self, told: Vector, changed: Vector) -> tuple[Vector, bytes]:
        """What somebody who was told this will know, and the message that says so."""
        if self._codec is None:
            return changed, (changed - told).tobytes()
        step = self._replica.steps
        body = self._codec.encode(torch.from_numpy(changed - told), step).numpy().tobytes()
        return told + self._decode(body, len(told), step), body

    def _decode(self, body: Body, count: int, step: int) -> Vector:
        """What a message says; `step` is its sender's when it was written."""
        if self._codec is None:
            return _floats(body)
        change: Vector = self._codec.decode(torch.frombuffer(bytearray(body), dtype=torch.uint8), count, step).numpy()
        return change

    async def _send(self, name: str, step: int, body: bytes) -> None:
        world = self._replica.world
        head = _HEAD.pack(step, world.now)
        buffers = self._replica.read(Quantity.BUFFERS)
        await world.peer(name).send(CHANGE, head, body + buffers.tobytes() + self._own_work().tobytes())

    def _own_work(self) -> Work:
        work = np.zeros(len(self._replica.members), dtype=np.int64)
        work[self._replica.rank] = self._replica.work[self._replica.rank]
        return work

    def _take(self, message: Message) -> None:
        world = self._replica.world
        assert self._spawn is not None
        assert self._changed is not None
        count = len(self._changed)
        step, sent_s = _HEAD.unpack(message.head)
        read = self._read(message.body, lambda body: self._decode(body, count, step))
        since = max(1, self._began[message.sender] + step - self._clocks[message.sender])
        scale = self._lengths.scale(message.sender, length(read[0]) / since)
        if scale != 1:
            why = f"{message.sender}: a change that is absurdly long"
            world.record(ContributionRefused(at=world.now, node=world.name, name="change", why=why))
            read = read[0] * np.float32(scale), *read[1:]
        self._clocks[message.sender] = max(self._clocks[message.sender], self._began[message.sender] + step)
        self._silent.discard(message.sender)
        self._arrived.append(read)
        self._heard.set()
        record_push(world, f"change of {message.sender}", sent_s)
        self._spawn(world.peer(message.sender).send(ACKNOWLEDGEMENT, lane=Lane.CONTROL))

    def _read(self, body: Body, decode: Callable[[Body], Vector]) -> tuple[Vector, Vector, Work]:
        """A change, its sender's buffers, and the work that it has done."""
        assert self._changed is not None
        work_bytes, buffer_bytes = self._replica.work.nbytes, self._replica.read(Quantity.BUFFERS).nbytes
        size = len(body) - work_bytes - buffer_bytes
        if size < 0:
            raise ValueError(f"{len(body)} bytes are no change")
        change = decode(body[:size])
        if change.shape != self._changed.shape or not all_finite(change):
            raise ValueError(f"{len(body)} bytes are no change of a model of {len(self._changed)}")
        buffers = np.frombuffer(body[size : size + buffer_bytes], dtype=np.float32)
        work = np.frombuffer(body[size + buffer_bytes :], dtype=np.int64)
        if not all_finite(buffers) or (work < 0).any() or (work > MOST_WORK).any():
            raise ValueError("buffers that are not finite, or work that nobody can have done")
        return change, buffers, work

    def _begins_anew(self, message: Message) -> None:
        assert self._changed is not None
        assert self._base is not None
        assert self._spawn is not None
        self._told[message.sender] = np.zeros_like(self._changed) if self._is_new else self._changed
        self._busy_since_s[message.sender] = None
        self._began[message.sender] = self._clocks[message.sender] = self._replica.steps
        body = b""  # who is new has nothing to tell
        if not self._is_new:
            buffers = self._replica.read(Quantity.BUFFERS).tobytes()
            body = self._base.tobytes() + self._changed.tobytes() + buffers + self._own_work().tobytes()
        head = _HEAD.pack(self._replica.steps, self._replica.world.now)
        self._spawn(self._replica.world.peer(message.sender).send(BASE, head, body))

    def _take_base(self, message: Message) -> None:
        """What the run began from, and all that the sender has changed since; nothing, if it is new too."""
        assert self._base is not None
        if not message.body:
            self._answered.add(message.sender)
            return
        size = self._base.nbytes
        base = np.frombuffer(message.body[:size], dtype=np.float32)
        if base.shape != self._base.shape or not all_finite(base):
            raise ValueError(f"{len(message.body)} bytes are not what a model of {len(self._base)} began from")
        step, _ = _HEAD.unpack(message.head)
        self._arrived.append(self._read(message.body[size:], _floats))
        self._clocks[message.sender] = max(self._clocks[message.sender], self._began[message.sender] + step)
        self._answered.add(message.sender)
        if self._is_new and not self._base_is_there:
            self._base, self._base_is_there = base, True

    def _acknowledged(self, message: Message) -> None:
        self._busy_since_s[message.sender] = None


def _floats(body: Body) -> Vector:
    return np.frombuffer(body, dtype=np.float32)
