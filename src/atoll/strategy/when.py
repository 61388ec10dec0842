"""When to exchange.  A part is asked at every step boundary and knows what a node knows.

Rules that look at the node itself (`Called`) call the others: a small message says which round is due, so that one
node's need is everybody's, and a node that is cut off holds up nobody.
"""

import abc
import struct
from collections.abc import Callable
from typing import Protocol

from atoll.exchange import Vector
from atoll.strategy.replica import Replica
from atoll.strategy.talk import Spawn
from atoll.world.base import Lane

__all__ = ["Called", "Every", "Rule", "When"]


class When(abc.ABC):
    """Whether a node should exchange now."""

    def start(self, replica: Replica, spawn: Spawn) -> None:  # noqa: B027 - most need nothing
        """Called once, before the first step."""

    @abc.abstractmethod
    def __call__(self, replica: Replica, steps_since: int, number: int) -> bool:
        """Asked at every boundary.

        Args:
            replica: the node's model.
            steps_since: own steps since it last began an exchange.
            number: of the exchange that would begin.
        """

    def agreed(self, values: Vector, span: slice) -> None:  # noqa: B027
        """An exchange is done: these are the node's values now, agreed on in a span of them."""


class Every(When):
    """Every so many of the node's own steps."""

    def __init__(self, steps: int) -> None:
        self._steps = steps

    def __call__(self, replica: Replica, steps_since: int, number: int) -> bool:  # noqa: ARG002 - the shape of the part
        return steps_since >= self._steps


class Rule(Protocol):
    """What a node sees in itself and hears of others."""

    def start(self, replica: Replica, spawn: Spawn) -> None: ...

    def __call__(self, replica: Replica, steps_since: int) -> bool:
        """Whether the node needs an exchange; asked at every boundary."""

    def begins(self, now: float) -> None:
        """An exchange begins, whoever called for it."""

    def agreed(self, values: Vector, span: slice) -> None: ...


class Called(When):
    """When any node's rule asks for it: that node tells all others which exchange is due.

    Args:
        make: makes the rule.
    """

    _CALL = struct.Struct("<Q")

    def __init__(self, make: Callable[[], Rule]) -> None:
        self._rule = make()
        self._called = -1
        self._spawn: Spawn | None = None

    def start(self, replica: Replica, spawn: Spawn) -> None:
        self._spawn = spawn
        spawn(self._listen(replica))
        self._rule.start(replica, spawn)

    def __call__(self, replica: Replica, steps_since: int, number: int) -> bool:
        due = self._called >= number
        if not due and self._rule(replica, steps_since):
            due = True
            self._call(replica, number)
        if due:
            self._rule.begins(replica.world.now)
        return due

    def _call(self, replica: Replica, number: int) -> None:
        assert self._spawn is not None
        self._called = number
        for name in replica.members:
            if name != replica.world.name:
                self._spawn(replica.world.peer(name).send("call", self._CALL.pack(number), lane=Lane.CONTROL))

    def agreed(self, values: Vector, span: slice) -> None:
        self._rule.agreed(values, span)

    async def _listen(self, replica: Replica) -> None:
        while True:
            message = await replica.world.receive("call")
            (number,) = self._CALL.unpack(message.head)
            self._called = max(self._called, number)
