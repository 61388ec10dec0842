"""A round in progress, its result, and the interface of the quantity that it averages."""

import asyncio
from dataclasses import dataclass
from typing import Protocol

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
    """The member's own values, one vector per block; `None` where they were unusable, or the block is done."""
    step: int
    alone: int
    """How many steps' gradients the snapshot holds."""
    since: float
    task: "asyncio.Task[Outcome | None]"

    def abandon(self) -> None:
        """Abandons the rest of the round: what was contributed to it is unsent again."""
        self.task.cancel()
        for block, snapshot in zip(self.fragment.blocks, self.snapshots, strict=True):
            block.abandon(snapshot)


@dataclass(frozen=True, slots=True)
class BlockOutcome:
    """The result of a round for one block."""

    block: Block
    place: int
    """The number of the block in the round."""
    step: int
    """The node's step when the snapshot was taken."""
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
    """The result of a round.  Its blocks were accepted one by one."""

    via: str
    tail: Trailer
    digest: str


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

    def all_took_part(self, key: int, place: int) -> None:
        """Called when all members have contributed to a block.

        Args:
            key: the round's number.
            place: the block's.
        """

    def finish(self, found: BlockOutcome, digest: str) -> tuple[BlockOutcome, str]:
        """Completes the result of a round for a block, on a thread outside the event loop.

        Args:
            found: the result so far.
            digest: of the blocks before it; returned with this one's.
        """

    def accept(self, found: BlockOutcome, key: int) -> None:
        """Accepts the result of a block, in the order of blocks.

        Args:
            found: the result.
            key: the round's number.
        """

    async def apply(self, pending: Pending, *, late: bool) -> None:
        """Applies the results of a round's blocks that were accepted, at a step boundary."""

    def forget(self) -> None:
        """Called when a round is abandoned: results that were accepted and count only together are dropped."""
