"""A round in progress, its result, and the interface of the quantity that it averages."""

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

import numpy as np

from atoll.collectives import Round
from atoll.strategies.rounds.block import Agreed, Block
from atoll.strategies.rounds.fragment import Fragment
from atoll.strategies.rounds.trailer import Trailer
from atoll.vectors import Vector

__all__ = ["Averaged", "BlockOutcome", "Outcome", "Pending"]


@dataclass(frozen=True, slots=True)
class Pending:
    """The round that a node is in."""

    meeting: Round
    via: str
    fragment: Fragment
    snapshots: "list[Vector | None]"
    """The member's own values, one vector per block; `None` where they were unusable."""
    step: int
    alone: int
    """How many steps' gradients the snapshot holds."""
    since: float
    task: "asyncio.Task[Outcome | None]"


@dataclass(frozen=True, slots=True)
class BlockOutcome:
    """The result of a round for one block."""

    block: Block
    snapshot: Vector | None
    """The member's own values; `None`: unusable, so that it continues with the agreed ones."""
    unsent: Vector | None
    """The residual of this member's contribution."""
    missed: Vector | None
    """The mean minus this member's contribution, for corrections."""
    counts: bool
    """Whether any member contributed."""
    mean: Vector | None = None
    """The mean, until something is made of it."""
    agreed: Agreed | None = None
    """The values that all members hold from now on; `None` where they are not a model."""
    change: Vector | None = None
    """What to add to a model that has made steps since; `None`: what lies on top of what is agreed on must be seen."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """The result of a round."""

    via: str
    tail: Trailer
    blocks: list[BlockOutcome]
    digest: str = ""
    is_refused: bool = False
    """Whether its sum is implausible."""

    @classmethod
    def refused(cls, via: str, members: int) -> "Outcome":
        nothing = np.zeros(0, dtype=np.float32)
        return cls(via, Trailer(0.0, np.zeros(members, dtype=np.int64), nothing, nothing), [], is_refused=True)


class Averaged(Protocol):
    """What a driver's rounds average: models, or gradients."""

    @property
    def steps(self) -> int:
        """The node's step."""

    @property
    def far_out(self) -> float:
        """Limit for a contribution's norm, in medians of the others' norms."""

    @property
    def suffix(self) -> str:
        """The suffix of the names of rounds after the first view."""

    async def snapshots(self, fragment: Fragment, step: int, *, corrected: bool) -> tuple[list[Vector | None], int]:
        """A member's contribution to a round, one vector per block, and how many steps' gradients are in it."""

    def all_took_part(self) -> None:
        """Called when all members have contributed to the current round."""

    def finish(self, found: BlockOutcome, digest: str) -> tuple[BlockOutcome, str]:
        """Completes the result of a round for a block, on a thread outside the event loop.

        Args:
            found: the result so far.
            digest: of the blocks before it; returned with this one's.
        """

    def follow(self, pending: Pending, outcome: Outcome, *, late: bool) -> Callable[[], None]:
        """Accepts the result of a round.  Returns a function that applies it to the model, which takes a while."""
