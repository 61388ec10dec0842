"""Everybody meets in rounds: take a snapshot, reduce it with all members, correct the model by the result.

A round's number is its id: a node's n-th round meets everybody else's n-th, whatever their speeds.  A node is in one
round at a time.

A blocking round is waited for max(2 s, `patience` × the time it is expected to take, from the last ones).  Then it
turns into an overlapped one: training goes on, transfers resume when they can, and the result is applied as a
correction when it comes: x ← x + (mean − snapshot).  What was learned meanwhile is kept.

Beside the values a round carries a tail of numbers, summed like everything else and hence the same on every member: the
weights' sum, the work that is included, and how long each collective took, by which all members choose the same one.
"""

import asyncio
from collections import deque
from dataclasses import dataclass
from statistics import median

import numpy as np

from atoll.exchange import COLLECTIVES, Round, Vector
from atoll.strategy.ahead import Ahead, OwnSteps
from atoll.strategy.merge import Weight
from atoll.strategy.outer import Outer, TakeMean
from atoll.strategy.replica import Quantity, Replica, Work
from atoll.strategy.talk import Spawn, Talk
from atoll.strategy.when import When
from atoll.trace import Exchanged, Waited

__all__ = ["Rounds"]

LEAST_WAIT_S = 2.0
FIRST_WAIT_S = 30.0
"""How long a round is waited for before anything is known of how long rounds take."""
_LOW = 1 << 20  # work is split in two numbers that a 32-bit float holds exactly
BEST = "best"


class Rounds(Talk):
    """One node's part in rounds.

    Args:
        replica: its model.
        when: when to begin a round.
        quantity: what is averaged.
        via: a collective's name, or `best`.
        weight: what a member counts.
        overlap: do not wait at all.
        patience: how many times the expected time a round is waited for.
        outer: what all make of a mean of parameters.
        ahead: what a node that has trained on meanwhile puts on top of a mean of parameters.
    """

    def __init__(
        self,
        replica: Replica,
        *,
        when: When,
        quantity: Quantity,
        via: str,
        weight: Weight,
        overlap: bool,
        patience: float,
        ahead: Ahead | None = None,
        outer: Outer | None = None,
    ) -> None:
        self._replica = replica
        self._when = when
        self._quantity = quantity
        self._weight = weight
        self._overlap = overlap
        self._patience = patience
        self._ahead = ahead or OwnSteps()
        self._outer = outer or TakeMean()
        self._choice = _Choice(via)
        self._spawn: Spawn | None = None
        self._number = 0
        self._begun_at_step = 0
        self._last_weighed_step = 0
        self._pending: _Pending | None = None
        self._gradient_was_merged = False
        self._unshared: Vector | None = None  # gradients that were used here and are in no round yet
        self._durations: deque[float] = deque(maxlen=5)

    def start(self, spawn: Spawn) -> None:
        self._spawn = spawn
        self._outer.start(self._replica.read(Quantity.PARAMETERS))

    async def after_gradient(self) -> None:
        if self._quantity is Quantity.GRADIENT:
            self._gradient_was_merged = await self._turn()

    async def after_step(self) -> bool:
        if self._quantity is Quantity.PARAMETERS:
            return await self._turn()
        return self._gradient_was_merged

    async def _turn(self) -> bool:
        """A step boundary."""
        if self._quantity is Quantity.GRADIENT:
            own = self._replica.read(self._quantity)
            self._unshared = own if self._unshared is None else self._unshared + own
        merged = self._apply()
        # A gradient is exchanged before its step is counted.
        step = self._replica.steps + (self._quantity is Quantity.GRADIENT)
        if self._pending is None and self._when(self._replica, step - self._begun_at_step):
            self._begin(step)
            if not self._overlap:
                await self._wait()
                merged = self._apply() or merged
        return merged

    def _begin(self, step: int) -> None:
        assert self._spawn is not None
        replica = self._replica
        # Of gradients, all that were used since the last round: had only the present one been shared, replicas that
        # went on alone for a while would never meet again.
        snapshot = replica.read(self._quantity) if self._unshared is None else self._unshared
        self._unshared = None
        contribution = snapshot if self._quantity is Quantity.GRADIENT else self._ahead.contribution(snapshot)
        alone = step - self._last_weighed_step if self._quantity is Quantity.GRADIENT else 1
        weight = self._weight(step - self._last_weighed_step)
        self._last_weighed_step = self._begun_at_step = step
        tail = _Tail.own(replica, weight, self._choice.report())
        via = self._choice.now()
        meeting = Round(replica.world, f"round {self._number}", replica.members)
        payload = np.concatenate([contribution * np.float32(weight), tail])
        task = self._spawn(self._reduce(meeting, via, payload))
        self._pending = _Pending(self._number, via, snapshot, step, alone, replica.world.now, task)
        self._number += 1

    async def _reduce(self, meeting: Round, via: str, payload: Vector) -> Vector:
        if meeting.size == 1:
            return payload
        return await COLLECTIVES[via](meeting, payload)

    async def _wait(self) -> None:
        assert self._pending is not None
        since = self._replica.world.now
        expected = self._patience * median(self._durations) if self._durations else FIRST_WAIT_S
        await asyncio.wait({self._pending.task}, timeout=max(LEAST_WAIT_S, expected))
        self._replica.world.record(
            Waited(
                at=self._replica.world.now,
                node=self._replica.world.name,
                since=since,
                why=f"round {self._pending.number}",
            )
        )

    def _apply(self) -> bool:
        """Takes the result of the round under way, if it is there."""
        pending = self._pending
        if pending is None or not pending.task.done():
            return False
        self._pending = None
        replica, world = self._replica, self._replica.world
        result = pending.task.result()
        size = len(pending.snapshot)
        total = _Tail.read(result[size:], len(replica.members))
        mean = result[:size] / np.float32(total.weight)
        late = replica.steps + (self._quantity is Quantity.GRADIENT) > pending.step
        if self._quantity is Quantity.PARAMETERS:
            drift = replica.read(self._quantity) - pending.snapshot if late else np.zeros_like(mean)
            agreed = self._outer(mean)
            ahead = self._ahead(agreed, drift, pending.step, replica.steps - pending.step)
            replica.write(self._quantity, agreed + ahead)
        elif late or pending.alone > 1:
            replica.add(self._quantity, mean - pending.snapshot)
        else:
            replica.write(self._quantity, mean)
        replica.include(total.work)
        self._durations.append(world.now - pending.since)
        self._choice.learn(pending.via, world.now - pending.since, total.reports)
        world.record(
            Exchanged(
                at=world.now,
                node=world.name,
                name=f"round {pending.number}",
                via=pending.via,
                since=pending.since,
                members=len(replica.members),
                late=late,
            )
        )
        return True


@dataclass(frozen=True, slots=True)
class _Pending:
    """The round that a node is in."""

    number: int
    via: str
    snapshot: Vector
    step: int
    alone: int
    """How many steps' gradients the snapshot holds."""
    since: float
    task: asyncio.Task[Vector]


class _Tail:
    """The numbers that travel behind the values."""

    def __init__(self, weight: float, work: Work, reports: Vector) -> None:
        self.weight = weight
        self.work = work
        self.reports = reports

    @staticmethod
    def own(replica: Replica, weight: float, report: Vector) -> Vector:
        """A member adds its weight, its own work in its own place, and what it saw."""
        count, rank = len(replica.members), replica.rank
        tail = np.zeros(1 + 2 * count + len(report), dtype=np.float32)
        tail[0] = weight
        high, low = divmod(int(replica.work[rank]), _LOW)
        tail[1 + rank], tail[1 + count + rank] = high, low
        tail[1 + 2 * count :] = report
        return tail

    @classmethod
    def read(cls, tail: Vector, count: int) -> "_Tail":
        high, low = tail[1 : 1 + count].astype(np.int64), tail[1 + count : 1 + 2 * count].astype(np.int64)
        return cls(float(tail[0]), high * _LOW + low, tail[1 + 2 * count :])


class _Choice:
    """Which collective to use.  `best` tries each once, then takes the one that took all members together the least
    time.

    Every twentieth round it tries the runner-up again, so that it notices when the network has changed.
    """

    def __init__(self, via: str) -> None:
        self._names = list(COLLECTIVES)
        self._fixed = None if via == BEST else via
        self._seconds: dict[str, float] = {}
        self._rounds = 0
        self._last = np.zeros(2 * len(self._names) if via == BEST else 0, dtype=np.float32)

    def now(self) -> str:
        if self._fixed:
            return self._fixed
        untried = [name for name in self._names if name not in self._seconds]
        if untried:
            return self._names[self._rounds % len(self._names)]
        ranked = sorted(self._names, key=lambda name: self._seconds[name])
        return ranked[1] if self._rounds % 20 == 19 else ranked[0]

    def report(self) -> Vector:
        """What this member tells of its last round: seconds and a count, in the place of the collective used."""
        return self._last

    def learn(self, via: str, seconds: float, reports: Vector) -> None:
        if self._fixed:
            return
        self._rounds += 1
        count = len(self._names)
        for place, name in enumerate(self._names):
            if reports[count + place] > 0:
                mean = float(reports[place] / reports[count + place])
                known = self._seconds.get(name)
                self._seconds[name] = mean if known is None else 0.7 * known + 0.3 * mean
        self._last = np.zeros(2 * count, dtype=np.float32)
        place = self._names.index(via)
        self._last[place], self._last[count + place] = seconds, 1
