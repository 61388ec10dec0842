"""A strategy, and one node's side of it.

A `Strategy` is a frozen value: it can be compared, printed and sent to another process.  `strategy.start(replica)`
makes the `Talk` of one node, which is the only place where a strategy keeps state.
"""

import abc
from dataclasses import dataclass

from atoll.collectives import Spawn
from atoll.state import Saved
from atoll.strategies.replica import Replica
from atoll.trace import Exchanged
from atoll.world.base import World

__all__ = ["Silence", "Spawn", "Strategy", "Talk", "record_push"]


class Talk:
    """One node's side of a strategy."""

    def prepare(self) -> None:
        """Reads the model for the first time.  Called once before `start`, on a thread outside the event loop: a
        large model takes seconds.
        """

    def start(self, spawn: Spawn) -> None:
        """Called once, before the first step.  Spawned tasks run in the background until the node is done."""

    async def after_gradient(self) -> None:
        """Called when the gradient of a step is computed and not yet used."""

    async def after_step(self) -> bool:
        """Called after a step.  Returns whether the model was merged with others'."""
        return False

    @property
    def is_idle(self) -> bool:
        """Whether there is nothing to do after a step.  Any thread may ask; a concurrent change is seen after the next
        step.
        """
        return False

    @property
    def memory_bytes(self) -> int:
        """About how many bytes it holds at most, beyond what training needs."""
        return 0

    async def settle(self) -> None:
        """Brings the model to what was agreed on; called before `save` between two steps."""

    def save(self) -> Saved:
        """The state for a checkpoint, at a step boundary, without exchanges in progress."""
        return {}

    def load(self, saved: Saved) -> None:
        """Continues from the result of `save`; called right after `start`."""


class Strategy(abc.ABC):
    """A communication strategy: a frozen composition of parts.  Parts that do not fit are refused when it is made."""

    @abc.abstractmethod
    def start(self, replica: Replica) -> Talk:
        """One node's side of it."""

    @property
    def uses_gradients(self) -> bool:
        """Whether it averages or changes gradients, before the optimiser uses them."""
        return False

    @property
    def shares_examples(self) -> bool:
        """Whether nodes give each other some of their examples."""
        return False


def record_push(world: World, what: str, sent_s: float) -> None:
    """Records the arrival of another node's push."""
    world.record(Exchanged(at=world.now, node=world.name, name=what, via="push", since=sent_s, members=2, late=True))


class _Silent(Talk):
    """Sends nothing."""

    @property
    def is_idle(self) -> bool:
        return True


@dataclass(frozen=True, slots=True)
class Silence(Strategy):
    """No communication."""

    def start(self, replica: Replica) -> Talk:  # noqa: ARG002 - it asks for nothing
        return _Silent()
