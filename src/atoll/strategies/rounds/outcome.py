"""A round that is under way, what it comes to, and what the quantity that it averages has to say."""

import asyncio
from dataclasses import dataclass
from typing import Protocol

import numpy as np

from atoll.collectives import Round
from atoll.strategies.rounds.fragment import Fragment
from atoll.strategies.rounds.trailer import Trailer
from atoll.vectors import Vector

__all__ = ["Averaged", "Outcome", "Pending"]


@dataclass(frozen=True, slots=True)
class Pending:
    """The round that a node is in."""

    meeting: Round
    via: str
    fragment: Fragment
    snapshot: Vector | None
    """What the member had; `None` if it was of no use."""
    step: int
    alone: int
    """How many steps' gradients the snapshot holds."""
    since: float
    task: "asyncio.Task[Outcome | None]"


@dataclass(frozen=True, slots=True)
class Outcome:
    """What a round came to."""

    via: str
    tail: Trailer
    snapshot: Vector | None
    """What the member had; `None`: of no use to the others, so that it goes on with what they agree on."""
    mean: Vector | None
    """`None`: nothing of use."""
    agreed: Vector | None = None
    """What all members hold from now on; `None` where that is no model."""
    change: Vector | None = None
    """What to add to a model that has made steps since; `None`: what lies on top of what is agreed on must be seen."""
    digest: str = ""
    is_refused: bool = False
    """Whether its sum makes no sense."""

    @classmethod
    def refused(cls, via: str, members: int) -> "Outcome":
        nothing: Vector = np.zeros(0, dtype=np.float32)
        return cls(via, Trailer(0.0, np.zeros(members, dtype=np.int64), nothing, nothing), None, None, is_refused=True)


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

    def snapshot(self, fragment: Fragment, step: int, *, corrected: bool) -> tuple[Vector | None, int]:
        """What a member gives to a round, and how many steps' gradients are in it."""

    async def finish(self, fragment: Fragment, found: Outcome) -> Outcome:
        """Completes what a round came to, beside training: each line may take as long as copying a model."""

    def take(self, pending: Pending, outcome: Outcome, *, late: bool) -> None:
        """The node follows what a round came to."""
