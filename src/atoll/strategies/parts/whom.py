"""Which peers a node pushes to; it uses only measurements of its own traffic."""

import math
import random
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple, Protocol

from atoll.seeds import stream

__all__ = ["Acquaintance", "Aware", "Exponential", "Pairs", "Turn", "Uniform", "Whom"]


@dataclass(slots=True)
class Acquaintance:
    """A node's measurements of its pushes to one peer."""

    seconds: float = math.nan
    """Seconds until a push is acknowledged: an exponentially weighted mean."""
    since: float | None = None
    """The start of the push in flight."""

    def acknowledged(self, seconds: float) -> None:
        self.seconds = seconds if math.isnan(self.seconds) else 0.7 * self.seconds + 0.3 * seconds


class Turn(NamedTuple):
    """Whose turn it is to push."""

    own: str
    members: tuple[str, ...]
    """All names, in the order that all nodes use."""
    number: int
    """How often the node has pushed before."""


class Whom(Protocol):
    """Chooses up to `count` of the peers that have no push in flight."""

    def __call__(
        self, turn: Turn, free: Sequence[str], count: int, known: dict[str, Acquaintance], draw: random.Random
    ) -> list[str]: ...


@dataclass(frozen=True, slots=True)
class Uniform:
    """Any peer, with equal probability."""

    def __call__(
        self,
        turn: Turn,  # noqa: ARG002 - the shape of the part
        free: Sequence[str],
        count: int,
        known: dict[str, Acquaintance],  # noqa: ARG002
        draw: random.Random,
    ) -> list[str]:
        return draw.sample(free, min(count, len(free)))


@dataclass(frozen=True, slots=True)
class Aware:
    """Prefers fast peers, p ∝ 1/seconds, and sometimes takes any peer, to find links that have improved.

    An untried peer counts as fast as the fastest.
    """

    explore: float = 0.1

    def __call__(
        self,
        turn: Turn,  # noqa: ARG002 - the shape of the part
        free: Sequence[str],
        count: int,
        known: dict[str, Acquaintance],
        draw: random.Random,
    ) -> list[str]:
        left = list(free)
        seen = [known[name].seconds for name in left if name in known and not math.isnan(known[name].seconds)]
        quickest = max(min(seen, default=1.0), 1e-3)
        chosen: list[str] = []
        while left and len(chosen) < count:
            if draw.random() < self.explore:
                pick = draw.choice(left)
            else:
                times = [known[name].seconds if name in known else math.nan for name in left]
                weights = [1 / max(quickest if math.isnan(time) else time, 1e-3) for time in times]
                [pick] = draw.choices(left, weights)
            left.remove(pick)
            chosen.append(pick)
        return chosen


@dataclass(frozen=True, slots=True)
class Exponential:
    """One peer at a time, 1, 2, 4, … places ahead, in turn (Ying et al., 2021): after log₂N pushes, information from
    each node has reached all nodes.
    """

    def __call__(
        self,
        turn: Turn,
        free: Sequence[str],
        count: int,  # noqa: ARG002 - the shape of the part
        known: dict[str, Acquaintance],  # noqa: ARG002
        draw: random.Random,  # noqa: ARG002
    ) -> list[str]:
        places = len(turn.members)
        distance = 1 << (turn.number % max(1, (places - 1).bit_length()))
        peer = turn.members[(turn.members.index(turn.own) + distance) % places]
        return [peer] if peer in free else []


@dataclass(frozen=True, slots=True)
class Pairs:
    """Random pairs, drawn for each round and the same on all nodes; with an odd number, one node stays alone."""

    def __call__(self, own: str, number: int, members: tuple[str, ...]) -> tuple[str, ...]:
        names = list(members)
        stream(0, "pairs", str(number)).shuffle(names)
        place = names.index(own) // 2 * 2
        return tuple(names[place : place + 2])
