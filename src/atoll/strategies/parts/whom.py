"""With whom: which peers a node pushes to, learned from nothing but the traffic that it saw."""

import math
import random
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple, Protocol

from atoll.seeds import stream

__all__ = ["Acquaintance", "Aware", "Exponential", "Pairs", "Turn", "Uniform", "Whom"]


@dataclass(slots=True)
class Acquaintance:
    """What a node has seen of its pushes to one peer."""

    seconds: float = math.nan
    """How long a push took until it was acknowledged: an exponentially weighted mean."""
    since: float | None = None
    """When the push that is under way began."""

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
    """Chooses up to `count` of the peers that no push is under way to."""

    def __call__(
        self, turn: Turn, free: Sequence[str], count: int, known: dict[str, Acquaintance], draw: random.Random
    ) -> list[str]: ...


@dataclass(frozen=True, slots=True)
class Uniform:
    """Anybody, with equal chances."""

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
    """Quick peers rather than slow ones, p ∝ 1/seconds, and now and then anybody, so that a link that got better is
    found.

    A peer never tried counts as quick as the quickest.
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
    """One peer at a time, 1, 2, 4, … places on, in turn (Ying et al., 2021): in log₂N pushes everybody has heard of
    everybody.
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
    """Everybody with one other, drawn anew for each round and alike by all; who is left over is alone."""

    def __call__(self, own: str, number: int, members: tuple[str, ...]) -> tuple[str, ...]:
        names = list(members)
        stream(0, "pairs", str(number)).shuffle(names)
        place = names.index(own) // 2 * 2
        return tuple(names[place : place + 2])
