"""When to exchange.  A part is asked at every step boundary and knows only what its node knows.

Rules about the node itself (`Called`) notify the others: a small message says which round is due.  So all nodes start
the round when one needs it, and a node that is cut off delays nobody.
"""

import abc
import struct
from collections.abc import Callable
from typing import Protocol

from atoll.strategies.replica import Replica
from atoll.strategies.talk import Spawn
from atoll.world.base import Lane, Message, World
from atoll.world.hearing import hear

__all__ = ["AfterAView", "Called", "Every", "Paced", "Rule", "When"]


class When(abc.ABC):
    """Whether a node should exchange now."""

    def start(self, replica: Replica, spawn: Spawn) -> None:  # noqa: B027 - most need nothing
        """Called once, before the first step."""

    @abc.abstractmethod
    async def __call__(self, replica: Replica, steps_since: int, number: int) -> bool:
        """Asked at every boundary.

        Args:
            replica: the node's model.
            steps_since: own steps since it last began an exchange.
            number: of the exchange that would begin.
        """

    def may_be_due(self, steps_since: int) -> bool:  # noqa: ARG002 - for subclasses that know
        """Whether it has to be asked."""
        return True

    async def agreed(self) -> None:  # noqa: B027
        """Called when an exchange is done and the node has its result."""


class Every(When):
    """After a fixed number of the node's own steps."""

    def __init__(self, steps: int) -> None:
        self._steps = steps

    async def __call__(self, replica: Replica, steps_since: int, number: int) -> bool:  # noqa: ARG002 - the shape of the part
        return self.may_be_due(steps_since)

    def may_be_due(self, steps_since: int) -> bool:
        return steps_since >= self._steps


class AfterAView(When):
    """When nodes join or leave: at once, and a few times more, until the optimiser state from before has faded."""

    TIMES, STEPS = 4, 20

    async def __call__(self, replica: Replica, steps_since: int, number: int) -> bool:
        if replica.group.view.number == 0 or number >= self.TIMES:
            return False
        return number == 0 or steps_since >= self.STEPS


class Paced(When):
    """When the slowest node has done its steps: faster nodes do more steps instead of waiting.

    One step before a node has done its steps, it sends the time that the last one will take to all others.  Each node
    begins at the boundary after which one more step would make the others wait.  A peer that is cut off sends nothing,
    and the others continue to train: a round with it could not take place anyway.
    """

    _READY = struct.Struct("<QQf")  # the view's and the round's number, seconds until ready

    def __init__(self, steps: int) -> None:
        self._steps = steps
        self._told = -1, -1
        self._ready_s: dict[tuple[int, int], dict[str, float]] = {}
        self._boundary_s = 0.0
        self._step_s = 0.0
        self._world: World | None = None
        self._spawn: Spawn | None = None

    def start(self, replica: Replica, spawn: Spawn) -> None:
        self._world, self._spawn = replica.world, spawn
        spawn(hear(replica.world, "ready", self._hear))

    async def __call__(self, replica: Replica, steps_since: int, number: int) -> bool:
        now = replica.world.now
        if now > self._boundary_s:
            self._step_s, self._boundary_s = now - self._boundary_s, now
        left, view = max(0, self._steps - steps_since), replica.group.view
        due = view.number, number
        if self._told < due and left <= 1:
            self._tell(replica, due, left * self._step_s)
        ready = [said for name, said in self._ready_s.get(due, {}).items() if name in view.members]
        if left or len(ready) < len(view.members) - 1 or now + self._step_s <= max(ready, default=now):
            return False
        self._ready_s = {later: said for later, said in self._ready_s.items() if later > due}
        return True

    def _tell(self, replica: Replica, due: tuple[int, int], seconds: float) -> None:
        assert self._spawn is not None
        self._told = due
        ready = self._READY.pack(*due, seconds)
        for name in replica.group.view.members:
            if name != replica.world.name:
                self._spawn(replica.world.peer(name).send("ready", ready, lane=Lane.CONTROL))

    async def agreed(self) -> None:
        assert self._world is not None
        self._boundary_s = self._world.now  # waiting time is not part of a step

    def _hear(self, message: Message) -> None:
        assert self._world is not None
        view, number, seconds = self._READY.unpack(message.head)
        self._ready_s.setdefault((view, number), {})[message.sender] = self._world.now + seconds


class Rule(Protocol):
    """Decides from the node's own state and from messages of others."""

    def start(self, replica: Replica, spawn: Spawn) -> None: ...

    async def __call__(self, replica: Replica, steps_since: int) -> bool:
        """Whether the node needs an exchange; asked at every boundary."""

    def begins(self, now: float) -> None:
        """Called when an exchange begins, whichever node asked for it."""

    async def agreed(self) -> None: ...


class Called(When):
    """When any node's rule asks for it: that node notifies all others which exchange is due.

    Args:
        make: makes the rule.
    """

    _CALL = struct.Struct("<QQ")  # the view's and the round's number

    def __init__(self, make: Callable[[], Rule]) -> None:
        self._rule = make()
        self._called = -1, -1
        self._spawn: Spawn | None = None

    def start(self, replica: Replica, spawn: Spawn) -> None:
        self._spawn = spawn
        spawn(hear(replica.world, "call", self._hear))
        self._rule.start(replica, spawn)

    async def __call__(self, replica: Replica, steps_since: int, number: int) -> bool:
        wanted = replica.group.view.number, number
        due = self._called >= wanted
        if not due and await self._rule(replica, steps_since):
            due = True
            self._call(replica, wanted)
        if due:
            self._rule.begins(replica.world.now)
        return due

    def _call(self, replica: Replica, due: tuple[int, int]) -> None:
        assert self._spawn is not None
        self._called = due
        for name in replica.group.view.members:
            if name != replica.world.name:
                self._spawn(replica.world.peer(name).send("call", self._CALL.pack(*due), lane=Lane.CONTROL))

    async def agreed(self) -> None:
        await self._rule.agreed()

    def _hear(self, message: Message) -> None:
        view, number = self._CALL.unpack(message.head)
        self._called = max(self._called, (view, number))
