"""The events of islands: who holds which layers, and what stages have done."""

from dataclasses import dataclass

from atoll.trace.events import Event

__all__ = ["IslandsFormed", "SeatTaken", "StageReported", "StageSpan"]


@dataclass(frozen=True, slots=True)
class StageSpan:
    """The layers that a node holds of its island's model, from the first to the one behind the last."""

    node: str
    start: int
    stop: int

    def __str__(self) -> str:
        return f"{self.node} {self.start}-{self.stop}"


@dataclass(frozen=True, kw_only=True, slots=True)
class IslandsFormed(Event):
    """Who holds which layers of the model together."""

    stages: tuple[tuple[StageSpan, ...], ...] = ()
    """Of each island, in order."""
    samples_a_second: float
    """As predicted, of all islands together."""
    why: str = ""
    """There are none: why."""

    @property
    def lasts(self) -> set[str]:
        """The nodes of last stages, which test."""
        return {island[-1].node for island in self.stages}

    @property
    def described(self) -> tuple[str, ...]:
        """Each island, for people: `A1 0-4, A2 4-9`."""
        return tuple(", ".join(map(str, island)) for island in self.stages)


@dataclass(frozen=True, kw_only=True, slots=True)
class StageReported(Event):
    """What a stage of an island has done, since it last said so."""

    node: str
    island: str
    stage: int
    updates: int
    """In all."""
    stale_mean: float
    """Updates between a batch's forward and backward pass."""
    stale_most: int
    holds: int
    """How many batches it may have between the two: it is fewer updates late than that."""
    versions: int
    """Of its weights, that it keeps now."""
    most_bytes: int = 0
    """Of memory that it has used at one time."""
    given_up: int
    """Batches that did not come back, in all."""


@dataclass(frozen=True, kw_only=True, slots=True)
class SeatTaken(Event):
    """A node holds a stage of an island from now on, or none."""

    node: str
    island: str
    """Its name; empty: there is no stage for this node."""
    stage: int
    stages: int
    start: int
    """The first layer."""
    stop: int
    """The one behind the last."""
