"""Of what rounds are composed."""

from dataclasses import dataclass, field
from typing import Literal, Protocol

from atoll.collectives.reduce import Plain, Reduction, fitting
from atoll.errors import StrategyError
from atoll.strategies.parts.ahead import Ahead, OwnSteps
from atoll.strategies.parts.correction import Correction, Uncorrected
from atoll.strategies.parts.merge import Mean, Weight
from atoll.strategies.parts.outer import Outer, TakeMean
from atoll.strategies.parts.part import Part, part
from atoll.strategies.parts.when import When
from atoll.strategies.replica import Quantity
from atoll.vectors import Vector

__all__ = ["Meeting", "Post", "RoundParts", "Who"]


@dataclass(frozen=True, kw_only=True, slots=True)
class Meeting:
    """How rounds are held.  All recipes that hold rounds have these settings."""

    overlap: bool = False
    """Do not wait at all."""
    patience: float = 2.0
    """How many times the expected time a round is waited for."""
    steady: bool = False
    """Whether the global batch stays what it is while nodes are away: the others then take larger ones."""
    handover: Literal["auto", "model", "optimizer"] = "auto"
    """What a node that is new is handed; `auto`: the optimiser's state too where gradients are averaged, since models
    then stay alike only while their optimisers do.
    """


class Who(Protocol):
    """The members of a round."""

    def __call__(self, own: str, number: int, members: tuple[str, ...]) -> tuple[str, ...]:
        """With whom a node meets.

        Args:
            own: the node's name.
            number: of the round.
            members: who is here.
        """


class Post(Protocol):
    """What is made of a mean of gradients."""

    def __call__(self, mean: Vector) -> Vector: ...


@dataclass(frozen=True, kw_only=True)
class RoundParts:
    """What rounds are, as a value."""

    when: Part[When]
    """When to begin one."""
    meeting: Meeting = field(default_factory=Meeting)
    via: str = "auto"
    """A collective's name, `best`, or `auto`: the first that fits."""
    quantity: Quantity = Quantity.PARAMETERS
    """What is averaged."""
    weight: Weight = field(default_factory=Mean)
    """What a member counts."""
    warmup: int = 0
    """How many rounds are waited for all the same, at first: the first steps are the ones that go astray."""
    reduction: Part[Reduction] = field(default_factory=lambda: part(Plain))
    """How vectors are added up."""
    decay: float = 1.0
    """What unsent values are multiplied with from round to round."""
    outer: Part[Outer] = field(default_factory=lambda: part(TakeMean))
    """What all make of a mean of parameters."""
    ahead: Part[Ahead] = field(default_factory=lambda: part(OwnSteps))
    """What a node that has trained on meanwhile puts on top of it."""
    correction: Part[Correction] = field(default_factory=lambda: part(Uncorrected))
    """What is added to the parameters after each of the node's own steps."""
    fragments: int = 1
    """Into how many pieces the vector is cut; rounds take them in turn."""
    who: Who | None = None
    """The members of each round; all who are here if left out."""
    post: Post | None = None
    """What is made of a mean of gradients."""

    def __post_init__(self) -> None:
        if self.quantity is Quantity.GRADIENT and self.ahead.make is not OwnSteps:
            raise StrategyError("`ahead` is about models, and gradients are averaged: expected quantity=parameters")
        fitting(self.via, self.reduction())
