"""Gossip: now and then a node pushes its model to a few peers and merges what others have pushed to it.

A push is acknowledged.  To one peer at most one push is under way, so a slow link gets as much as it can carry and no
queue builds up; how long the acknowledgement took is all that a node learns about its links.  A push that has not left
after `patience_s` is taken back, and with push-sum its mass with it: nothing is lost or counted twice.
"""

import asyncio
import struct

import numpy as np

from atoll.strategy.merge import Arrival, Merge, Own
from atoll.strategy.replica import Quantity, Replica
from atoll.strategy.talk import Spawn, Talk
from atoll.strategy.when import When
from atoll.strategy.whom import Acquaintance, Whom
from atoll.trace import Exchanged
from atoll.world.base import Lane, Message

__all__ = ["Pushes"]

PUSH, ACKNOWLEDGEMENT = "push", "push ack"
_HEAD = struct.Struct("<Idd")  # number, seconds when it was taken, weight


class Pushes(Talk):
    """One node's part in gossip.

    Args:
        replica: its model.
        when: when to push.
        whom: how to choose peers.
        fanout: how many peers to push to; half of them if 0.
        merge: what to do with arrivals.
        patience_s: how long a push may wait to leave.
    """

    def __init__(
        self, replica: Replica, *, when: When, whom: Whom, fanout: int, merge: Merge, patience_s: float
    ) -> None:
        self._replica = replica
        self._when = when
        self._whom = whom
        self._peers = [name for name in replica.members if name != replica.world.name]
        self._fanout = fanout or max(1, len(self._peers) // 2)
        self._merge = merge
        self._patience_s = patience_s
        self._own = Own(merge.remembers)
        self._arrivals: list[Arrival] = []
        self._known: dict[str, Acquaintance] = {}
        self._pushed_at_step = 0
        self._number = 0
        self._spawn: Spawn | None = None

    def start(self, spawn: Spawn) -> None:
        self._spawn = spawn
        spawn(self._listen())
        spawn(self._hear_acknowledgements())

    async def after_step(self) -> bool:
        replica = self._replica
        merged = bool(self._arrivals)
        if merged:
            arrivals, self._arrivals = self._arrivals, []
            self._merge(replica, arrivals, self._own)
        if self._merge.remembers:
            self._own.remember(replica.world.now, replica.read(Quantity.PARAMETERS))
        if self._when(replica, replica.steps - self._pushed_at_step, self._number):
            self._pushed_at_step = replica.steps
            self._push()
        return merged

    def _push(self) -> None:
        assert self._spawn is not None
        world = self._replica.world
        free = [name for name in self._peers if name not in self._known or self._known[name].since is None]
        targets = self._whom(free, self._fanout, self._known, world.random)
        if not targets:
            return
        weight = 1.0
        if self._merge.conserves_mass:
            weight = self._own.mass / (len(targets) + 1)
            self._own.mass = weight
        values = self._replica.read(Quantity.PARAMETERS)
        arrival = Arrival(world.name, world.now, values, self._replica.work.copy(), weight)
        for name in targets:
            self._number += 1
            self._known.setdefault(name, Acquaintance()).since = world.now
            self._spawn(self._send(name, self._number, arrival))

    async def _send(self, name: str, number: int, arrival: Arrival) -> None:
        head = _HEAD.pack(number, arrival.sent_s, arrival.weight)
        body = arrival.values.tobytes() + arrival.work.tobytes()
        try:
            async with asyncio.timeout(self._patience_s):
                await self._replica.world.peer(name).send(PUSH, head, body)
        except TimeoutError:
            known = self._known[name]
            known.since = None
            known.acknowledged(self._patience_s)  # it may have taken for ever
            if self._merge.conserves_mass:
                self._arrivals.append(arrival)

    async def _listen(self) -> None:
        world = self._replica.world
        assert self._spawn is not None
        while True:
            message = await world.receive(PUSH)
            self._arrivals.append(self._read(message))
            acknowledge = world.peer(message.sender).send(ACKNOWLEDGEMENT, message.head[:4], lane=Lane.CONTROL)
            self._spawn(acknowledge)

    def _read(self, message: Message) -> Arrival:
        _, sent_s, weight = _HEAD.unpack(message.head)
        size = len(message.body) - 8 * len(self._replica.members)
        values = np.frombuffer(message.body[:size], dtype=np.float32)
        work = np.frombuffer(message.body[size:], dtype=np.int64)
        world = self._replica.world
        world.record(
            Exchanged(
                at=world.now,
                node=world.name,
                name=f"push of {message.sender}",
                via="push",
                since=sent_s,
                members=2,
                late=True,
            )
        )
        return Arrival(message.sender, sent_s, values, work, weight)

    async def _hear_acknowledgements(self) -> None:
        world = self._replica.world
        while True:
            message = await world.receive(ACKNOWLEDGEMENT)
            known = self._known[message.sender]
            if known.since is not None:
                known.acknowledged(world.now - known.since)
                known.since = None
