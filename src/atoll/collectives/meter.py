"""What a member measures for a plan of exchanges: its links, its computing time, and what compression would keep.

It measures ordinary traffic, and round trips by rare small probes.  Its numbers travel in the trailer of the next
round, so all members know the numbers of all.
"""

import asyncio
import struct

import numpy as np
import torch

from atoll.codecs.sparse import kept
from atoll.collectives.round import SendLog, Spawn
from atoll.vectors import Numbers, Vector
from atoll.world.base import Lane, World

__all__ = ["RATIOS", "Meter"]

RATIOS = tuple(float(ratio) for ratio in np.geomspace(0.1, 0.001, 9))
"""The ratios to choose from."""
SAMPLE, LEAST_SAMPLE = 1 << 16, 1 << 13
"""About so many values of a round are looked at, and of a long block at least so many."""
PROBE_S = 5.0
LEAST_BYTES = 2000
"""A member must send this many bytes before it reports its uplink speed; small rounds are taken together."""
LEAST_S = 1e-9
"""Stands for zero latency, since 0 means that nobody has measured it."""
LEAST_BYTE_S = 1e-13
"""Stands for an uplink on which bytes take no time, for the same reason."""
_PING = struct.Struct("<Q")
_SPARSE, _DENSE = 0, 1


class Meter:
    """One member's measurements."""

    def __init__(self) -> None:
        self.log = SendLog()
        """Messages sent since the uplink was last measured, and computing time."""
        self._latency: dict[str, float] = {}
        self._asked: dict[str, float] = {}
        self._up_s: float | None = None
        self._code_s = [0.0, 0.0]
        """Compute seconds per value in exchanges: of a part of the values, and of all."""
        self._values = 0
        """How many values went through the exchanges since computing time was last measured."""
        self._is_dense = False
        self._done_s = self._step_s = 0.0
        self._keeps = np.zeros(len(RATIOS))
        self._total = 0.0
        """Sums of squares of the own updates since the last report: what each ratio would keep, and all."""
        self._shared = 0.0, 0.0
        """The same at the places that AR-Topk has sent, and of as many of the own largest values."""

    def start(self, world: World, members: tuple[str, ...], spawn: Spawn) -> None:
        """Probes round trips from now on."""
        others = [name for name in members if name != world.name]
        spawn(self._answer(world, spawn))
        spawn(self._hear(world))
        spawn(self._probe(world, others, spawn))

    def restart(self) -> None:
        """Called when the members have changed."""
        self.log = SendLog()
        self._values, self._shared = 0, (0.0, 0.0)

    async def _probe(self, world: World, others: list[str], spawn: Spawn) -> None:
        number = 0
        while True:
            for name in others:
                if name not in self._asked:
                    number += 1
                    self._asked[name] = world.now
                    spawn(world.peer(name).send("ping", _PING.pack(number), lane=Lane.CONTROL))
            await asyncio.sleep(PROBE_S)

    async def _answer(self, world: World, spawn: Spawn) -> None:
        while True:
            message = await world.receive("ping")
            spawn(world.peer(message.sender).send("pong", message.head, lane=Lane.CONTROL))

    async def _hear(self, world: World) -> None:
        while True:
            message = await world.receive("pong")
            asked, known = self._asked.pop(message.sender, None), self._latency.get(message.sender)
            if asked is None:
                continue  # this node sent the ping before it restarted
            seconds = (world.now - asked) / 2
            if known is None or seconds < 5 * known + 1:  # else the link was down meanwhile
                self._latency[message.sender] = max(seconds, LEAST_S)

    def begin(self, now: float) -> None:
        """A round begins: since the last one this member has trained."""
        self._step_s = now - self._done_s

    @staticmethod
    def look(values: Vector, blocks: int = 1) -> Numbers:
        """Returns how much each ratio would keep of an update, and all of it, by a sample of one of its blocks.  Blocks
        are looked at on several threads: what is found is put together on the event loop (`saw`).
        """
        squares = values[:: len(values) // max(SAMPLE // blocks, LEAST_SAMPLE) | 1].square()
        most = kept(len(squares), max(RATIOS))
        sums = squares.topk(most).values.cumsum(0, dtype=torch.float64)
        places = [kept(len(squares), ratio) - 1 for ratio in RATIOS]
        found: Numbers = torch.cat([sums[places], squares.sum(dtype=torch.float64)[None]]).cpu().numpy()
        return found

    def saw(self, found: Numbers) -> None:
        """Takes what `look` has returned."""
        self._keeps = self._keeps + found[:-1]
        self._total += float(found[-1])

    @staticmethod
    def shared(values: Vector, unsent: Vector, ratio: float) -> tuple[float, float]:
        """Returns what AR-Topk has kept of an update, and what as many of its own largest values would have."""
        squares = values.square()
        own = float(squares.topk(kept(len(values), ratio), sorted=False).values.sum(dtype=torch.float64))
        total, left = (float(each.sum(dtype=torch.float64)) for each in (squares, unsent.square()))
        return max(0.0, total - left), own

    def saw_shared(self, found: tuple[float, float]) -> None:
        """Takes what `shared` has returned."""
        self._shared = self._shared[0] + found[0], self._shared[1] + found[1]

    def done(self, now: float, count: int, *, dense: bool) -> None:
        """A block of `count` values is exchanged."""
        self._done_s, self._is_dense = now, dense
        self._values += count

    @staticmethod
    def numbers(members: int) -> int:
        """How many numbers a report among so many members has."""
        return members + len(RATIOS) + 7

    def report(self, members: tuple[str, ...]) -> Numbers:
        """This member's numbers for the others: about its links, the updates, and its computing."""
        self._measure()
        latency = [self._latency.get(name, 0.0) for name in members]
        numbers = [*latency, self._up_s or 0.0, *self._keeps, self._total, self._step_s, *self._shared, *self._code_s]
        self._keeps, self._total, self._shared = np.zeros(len(RATIOS)), 0.0, (0.0, 0.0)
        return np.array(numbers, dtype=np.float32)

    def _measure(self) -> None:
        """The own uplink in seconds per byte, and computing in seconds per value, since the last report.

        A round of a small model is too short to measure its uplink; then several rounds are taken together.
        """
        if not self._values:
            return
        place, seconds = (_DENSE if self._is_dense else _SPARSE), self.log.computed_s / self._values
        self._code_s[place] += (seconds - self._code_s[place]) * (0.3 if self._code_s[place] else 1.0)
        self.log.computed_s, self._values = 0.0, 0
        seen = self.log.seconds_a_byte(LEAST_BYTES)
        if seen is not None:
            seen = max(seen, LEAST_BYTE_S)
            self._up_s = seen if self._up_s is None else 0.3 * self._up_s + 0.7 * seen
            self.log.clear()
