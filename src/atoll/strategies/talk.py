"""The shape of a conversation: what a strategy does at a node's step boundaries.

A `Strategy` is a frozen value that can be compared, printed and sent to another process.  When a node joins a run,
`strategy.talk(replica)` gives the conversation of that one node: the only place where a strategy keeps state.
"""

from collections.abc import Callable
from dataclasses import dataclass

from atoll.collectives import Spawn
from atoll.state import Saved
from atoll.strategies.replica import Replica
from atoll.trace import Exchanged
from atoll.world.base import World

__all__ = ["Silence", "Spawn", "Strategy", "Talk", "record_push"]


class Talk:
    """One node's side of a strategy."""

    def start(self, spawn: Spawn) -> None:
        """Called once, before the first step.  What is spawned runs in the background until the node is done."""

    async def after_gradient(self) -> None:
        """The gradient of a step is there, and not yet used."""

    @property
    def uses_gradients(self) -> bool:
        """Whether `after_gradient` does anything."""
        return type(self).after_gradient is not Talk.after_gradient

    @property
    def shares_examples(self) -> bool:
        """Whether nodes give each other some of their examples."""
        return False

    async def after_step(self) -> bool:
        """A step is done.  Returns whether the model was merged with others'."""
        return False

    @property
    def is_idle(self) -> bool:
        """Whether there is nothing to do after a step.  Any thread may ask; what changes at that very moment is seen
        after the next step.
        """
        return False

    def save(self) -> Saved:
        """What a checkpoint must hold of this, at a step boundary.  What is under way is not part of it."""
        return {}

    def load(self, saved: Saved) -> None:
        """Goes on from what `save` gave; called right after `start`."""


def record_push(world: World, what: str, sent_s: float) -> None:
    """Something that another node pushed has come."""
    world.record(Exchanged(at=world.now, node=world.name, name=what, via="push", since=sent_s, members=2, late=True))


class Silence(Talk):
    """Says nothing."""

    @property
    def is_idle(self) -> bool:
        return True


@dataclass(frozen=True, slots=True)
class Strategy:
    """A named composition of parts."""

    name: str
    """As written by the user, with all that differs from the defaults."""
    talk: Callable[[Replica], Talk]
    uses_gradients: bool = False
    """Whether it averages or changes gradients, before the optimiser uses them."""
    shares_examples: bool = False
    """Whether nodes give each other some of their examples."""
