"""Plans: which machines hold which layers of a model together, and the links between them."""

import itertools
from collections.abc import Sequence
from dataclasses import dataclass

from atoll.islands.cut import Costs, Cut, Hop, Machine
from atoll.vectors import Matrix

__all__ = ["Averaging", "Island", "MachineLinks", "Plan", "equal_cuts", "ranges", "shortage"]


@dataclass(frozen=True, eq=False, slots=True)
class MachineLinks:
    """The links between machines, by index."""

    latency_s: Matrix
    bytes_a_second: Matrix
    there: Matrix
    """The share of time that they can reach each other."""

    def hop(self, one: int, other: int) -> Hop:
        """The slower of the two directions."""
        both = (one, other), (other, one)
        return Hop(
            max(float(self.latency_s[pair]) for pair in both),
            min(float(self.bytes_a_second[pair]) for pair in both),
            min(float(self.there[pair]) for pair in both),
        )

    def hops(self, order: Sequence[int]) -> list[Hop]:
        return [self.hop(*pair) for pair in itertools.pairwise(order)]


@dataclass(frozen=True, slots=True, kw_only=True)
class Averaging:
    """How islands average their models.

    Attributes:
        every: steps between two exchanges.
        overlap: whether pipelines continue meanwhile.
        size: bytes sent for each byte of parameters.
    """

    every: int = 8
    overlap: bool = True
    size: float = 1.0


@dataclass(frozen=True, slots=True)
class Island:
    """Machines that hold one model, by index, in the order of its stages."""

    order: tuple[int, ...]
    cut: Cut


@dataclass(frozen=True, slots=True)
class Plan:
    """Which machines hold which layers."""

    islands: tuple[Island, ...]
    idle: tuple[int, ...]
    """Machines without a stage: they would slow their island down."""
    samples_a_second: float
    averaging_s: float
    """The approximate time of an exchange between all islands; 0 if there is one island."""
    how: str

    @property
    def name(self) -> str:
        sizes = [len(island.order) for island in self.islands]
        if max(sizes) == 1:
            return "every node its own island" if not self.idle else "islands of one node each"
        if len(sizes) == 1:
            return f"one island of {sizes[0]} nodes"
        return (
            f"{len(sizes)} islands of {min(sizes)} to {max(sizes)}"
            if len(set(sizes)) > 1
            else (f"{len(sizes)} islands of {sizes[0]}")
        )


def shortage(costs: Costs, machines: Sequence[Machine]) -> str:
    """A message that says why no machines can hold a model."""
    least = costs.memory_of(0, costs.count, 1).total
    there = sum(machine.memory_bytes for machine in machines)
    unit, factor = ("GB", 1e9) if least >= 1e9 else ("MB", 1e6)
    told = f"it takes {least / factor:.3g} {unit} in one piece"
    if len(machines) == 1:
        return f"one node cannot hold the model: {told}, and it has {there / factor:.3g} {unit}"
    told += f", and they have {there / factor:.3g} {unit}"
    if there > least:
        told += ", but stages keep more than one piece does (weights for batches in flight)"
    return f"no island of {len(machines)} nodes can hold the model: {told}"


def equal_cuts(costs: Costs, machines: Sequence[Machine], hops: Sequence[Hop]) -> Cut | None:
    """The same number of layers for each machine: the cut without measurements.  `None` if that does not fit."""
    count = len(machines)
    if count > costs.count:
        return None
    ends = [round(place * costs.count / count) for place in range(count + 1)]
    stages = [
        costs.stage(start, stop, machines[place], hops[place] if place < count - 1 else None, count - place)
        for place, (start, stop) in enumerate(itertools.pairwise(ends))
    ]
    fits = all(stage.memory.total <= machine.memory_bytes for stage, machine in zip(stages, machines, strict=True))
    return Cut(tuple(stages)) if fits else None


def ranges(owners: Sequence[Sequence[tuple[int, int]]]) -> list[tuple[int, int, tuple[int, ...]]]:
    """Spans of layers that have one owner in every island: first layer, end (one past the last), and their owners.

    Args:
        owners: for each island, where each stage ends, and its owner, in order.
    """
    ends = sorted({stop for island in owners for stop, _ in island})
    return [
        (start, stop, tuple(next(who for end, who in island if end >= stop) for island in owners))
        for start, stop in itertools.pairwise([0, *ends])
    ]
