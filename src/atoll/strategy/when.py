"""When to exchange.  A part is a value; it is asked at every step boundary and knows what a node knows."""

from dataclasses import dataclass
from typing import Protocol

from atoll.strategy.replica import Replica

__all__ = ["Every", "When"]


class When(Protocol):
    """Whether a node should exchange now, given how many steps it has done since it last began to."""

    def __call__(self, replica: Replica, steps_since: int) -> bool: ...


@dataclass(frozen=True, slots=True)
class Every:
    """Every so many of the node's own steps."""

    steps: int

    def __call__(self, replica: Replica, steps_since: int) -> bool:  # noqa: ARG002 - the shape of the part
        return steps_since >= self.steps
