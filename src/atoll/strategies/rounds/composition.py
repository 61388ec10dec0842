"""The parts of which rounds are composed."""

from dataclasses import dataclass, field
from typing import Literal, Protocol

import torch

from atoll.collectives.reduce import Plain, Reduction, fitting
from atoll.errors import StrategyError
from atoll.strategies.parts.ahead import Ahead, OwnSteps
from atoll.strategies.parts.correction import Correction, Uncorrected
from atoll.strategies.parts.merge import Mean, Weight
from atoll.strategies.parts.outer import Outer, TakeMean
from atoll.strategies.parts.part import Part, part
from atoll.strategies.parts.when import When
from atoll.strategies.replica import Quantity
from atoll.vectors import CPU, Vector

__all__ = ["Meeting", "Post", "RoundParts", "Who"]


@dataclass(frozen=True, kw_only=True, slots=True)
class Meeting:
    """How rounds are held.  All recipes that hold rounds have these settings."""

    overlap: bool = False
    """Do not wait at all."""
    patience: float = 2.0
    """How long a node waits for a round, in expected round times."""
    steady: bool = False
    """Whether the global batch size stays the same while nodes are unreachable: the others then use larger batches."""
    state: Literal["float32", "bfloat16"] = "float32"
    """The number format of what a node keeps between rounds: what was agreed on, what was not sent, momentum."""
    memory: Literal["device", "host"] = "device"
    """Where a node keeps it: on the model's device, or in the host's memory, which is slower than a GPU's."""
    handover: Literal["auto", "model", "optimizer"] = "auto"
    """The state that a new node receives; `auto`: also the optimiser state where gradients are averaged, since models
    then stay equal only while their optimisers do.
    """


class Who(Protocol):
    """The members of a round."""

    def __call__(self, own: str, number: int, members: tuple[str, ...]) -> tuple[str, ...]:
        """The members of a node's round.

        Args:
            own: the node's name.
            number: of the round.
            members: the reachable members.
        """


class Post(Protocol):
    """What is made of a mean of gradients."""

    def __call__(self, mean: Vector) -> Vector: ...


@dataclass(frozen=True, kw_only=True)
class RoundParts:
    """The parts of rounds, as a value."""

    when: Part[When]
    """When to begin one."""
    meeting: Meeting = field(default_factory=Meeting)
    via: str = "auto"
    """A collective's name, `best`, or `auto`: the first that fits."""
    quantity: Quantity = Quantity.PARAMETERS
    """What is averaged."""
    weight: Weight = field(default_factory=Mean)
    """A member's weight in the mean."""
    warmup: int = 0
    """How many of the first rounds are always waited for: models diverge most easily in the first steps."""
    reduction: Part[Reduction] = field(default_factory=lambda: part(Plain))
    """How vectors are added up."""
    decay: float = 1.0
    """The factor for unsent values from round to round."""
    outer: Part[Outer] = field(default_factory=lambda: part(TakeMean))
    """The outer step on a mean of parameters."""
    ahead: Part[Ahead] = field(default_factory=lambda: part(OwnSteps))
    """What a node that continued to train meanwhile adds to it."""
    correction: Part[Correction] = field(default_factory=lambda: part(Uncorrected))
    """What is added to the parameters after each of the node's own steps."""
    fragments: int = 1
    """Into how many pieces the vector is cut; rounds take them in turn."""
    who: Who | None = None
    """The members of each round; default: all reachable members."""
    post: Post | None = None
    """What is made of a mean of gradients."""

    def home(self, device: torch.device) -> torch.device:
        """Where a model on a device keeps what it keeps between rounds."""
        return CPU if self.meeting.memory == "host" else device

    @property
    def dtype(self) -> torch.dtype:
        """The number format of what is kept."""
        return torch.bfloat16 if self.meeting.state == "bfloat16" else torch.float32

    def __post_init__(self) -> None:
        if self.dtype != torch.float32 and not self.ahead().adds:
            raise StrategyError("state=bfloat16 keeps what a node adds to a late mean too roughly: expected ahead=own")
        if self.quantity is Quantity.GRADIENT and self.ahead.make is not OwnSteps:
            raise StrategyError("`ahead` is about models, and gradients are averaged: expected quantity=parameters")
        fitting(self.via, self.reduction())
