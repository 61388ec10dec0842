"""When to exchange.  A part is asked at every step boundary and knows what a node knows.

Rules that look at the node itself (`Called`) call the others: a small message says which round is due, so that one
node's need is everybody's, and a node that is cut off holds up nobody.
"""

import struct
from collections.abc import Callable
from typing import Protocol

from atoll.exchange import Vector
from atoll.strategy.replica import Replica
from atoll.strategy.talk import Spawn
from atoll.world.base import Lane

__all__ = ["Called", "Every", "Rule", "When"]


class When:
    """Whether a node should exchange now."""

    def start(self, replica: Replica, spawn: Spawn) -> None:
        """Called once, before the first step."""

    def __call__(self, replica: Replica, steps_since: int, number: int) -> bool:
        """Asked at every boundary.

        Args:
            replica: the node's model.
            steps_since: own steps since it last began an exchange.
            number: of the exchange that would begin.
        """
        raise NotImplementedError

    def agreed(self, values: Vector, span: slice) -> None:
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
        longest: an exchange is due after so many steps in any case; 0: never.
    """

    _CALL = struct.Struct("<Q")

    def __init__(self, make: Callable[[], Rule], *, longest: int = 0) -> None:
        self._rule = make()
        self._longest = longest
        self._called = -1
        self._spawn: Spawn | None = None

    def start(self, replica: Replica, spawn: Spawn) -> None:
        self._spawn = spawn
        spawn(self._listen(replica))
        self._rule.start(replica, spawn)

    def __call__(self, replica: Replica, steps_since: int, number: int) -> bool:
        wanted = self._rule(replica, steps_since) or (self._longest > 0 and steps_since >= self._longest)
        if self._called >= number:
            self._rule.begins(replica.world.now)
            return True
        if wanted:
            self._rule.begins(replica.world.now)
            assert self._spawn is not None
            self._called = number
            for name in replica.members:
                if name != replica.world.name:
                    self._spawn(replica.world.peer(name).send("call", self._CALL.pack(number), lane=Lane.CONTROL))
        return wanted

    def agreed(self, values: Vector, span: slice) -> None:
        self._rule.agreed(values, span)

    async def _listen(self, replica: Replica) -> None:
        while True:
            message = await replica.world.receive("call")
            (number,) = self._CALL.unpack(message.head)
            self._called = max(self._called, number)
