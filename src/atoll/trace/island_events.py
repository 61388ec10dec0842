"""The events of islands: which nodes hold which layers, and the work of stages."""

from dataclasses import dataclass

from atoll.trace.events import Event

__all__ = ["IslandsFormed", "SeatTaken", "StageReported", "StageSpan"]


@dataclass(frozen=True, slots=True)
class StageSpan:
    """The layers that a node holds of its island's model; `stop` is one past the last."""

    node: str
    start: int
    stop: int

    def __str__(self) -> str:
        return f"{self.node} {self.start}-{self.stop}"


@dataclass(frozen=True, kw_only=True, slots=True)
class IslandsFormed(Event):
    """Which nodes hold which layers of the model together."""

    stages: tuple[tuple[StageSpan, ...], ...] = ()
    """The stages of each island, in order."""
    samples_a_second: float
    """The predicted speed of all islands together."""
    why: str = ""
    """If there are no islands: why."""

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
    """The work of a stage since its last report."""

    node: str
    island: str
    stage: int
    updates: int
    """The total number of updates."""
    stale_mean: float
    """Updates between a batch's forward and backward pass."""
    stale_most: int
    holds: int
    """How many batches it may have between the two; its staleness is below that."""
    versions: int
    """How many versions of its weights it keeps now."""
    most_bytes: int = 0
    """The most memory that it has used."""
    given_up: int
    """The total number of batches that did not come back."""


@dataclass(frozen=True, kw_only=True, slots=True)
class SeatTaken(Event):
    """A node holds a stage of an island from now on, or none."""

    node: str
    island: str
    """Its name; empty if there is no stage for this node."""
    stage: int
    stages: int
    start: int
    """The first layer."""
    stop: int
    """One past the last layer."""
