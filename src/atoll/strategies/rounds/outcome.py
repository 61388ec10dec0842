"""A round that is under way, what it comes to, and what the quantity that it averages has to say."""

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

import numpy as np

from atoll.collectives import Round
from atoll.strategies.rounds.block import Block
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
    """What the member had, a vector a block; `None` where it was of no use."""
    step: int
    alone: int
    """How many steps' gradients the snapshot holds."""
    since: float
    task: "asyncio.Task[Outcome | None]"


@dataclass(frozen=True, slots=True)
class BlockOutcome:
    """What a round came to for one block."""

    block: Block
    snapshot: Vector | None
    """What the member had; `None`: of no use to the others, so that it goes on with what they agree on."""
    mean: Vector | None
    """`None`: nothing of use."""
    agreed: Vector | None = None
    """What all members hold from now on; `None` where that is no model."""
    change: Vector | None = None
    """What to add to a model that has made steps since; `None`: what lies on top of what is agreed on must be seen."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """What a round came to."""

    via: str
    tail: Trailer
    blocks: list[BlockOutcome]
    digest: str = ""
    is_refused: bool = False
    """Whether its sum makes no sense."""

    @classmethod
    def refused(cls, via: str, members: int) -> "Outcome":
        nothing: Vector = np.zeros(0, dtype=np.float32)
        return cls(via, Trailer(0.0, np.zeros(members, dtype=np.int64), nothing, nothing), [], is_refused=True)


class Averaged(Protocol):
    """What a driver's rounds average: models, or gradients."""

    @property
    def steps(self) -> int:
        """The node's step."""

    @property
    def far_out(self) -> float:
        """How far from the others' a contribution may lie."""

    @property
    def suffix(self) -> str:
        """What the names of rounds among some end with."""

    async def snapshots(self, fragment: Fragment, step: int, *, corrected: bool) -> tuple[list[Vector | None], int]:
        """What a member gives to a round, a vector a block, and how many steps' gradients are in it."""

    def all_took_part(self) -> None:
        """All members have brought something to the round under way."""

    def finish(self, found: BlockOutcome, digest: str) -> tuple[BlockOutcome, str]:
        """Completes what a round came to for a block, on a thread beside the event loop.

        Args:
            found: what it came to so far.
            digest: of the blocks before it; returned with this one's.
        """

    def follow(self, pending: Pending, outcome: Outcome, *, late: bool) -> Callable[[], None]:
        """The node follows what a round came to.  Returns what is to be done to its model: that takes a while."""
