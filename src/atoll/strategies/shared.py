"""Settings that several recipes share, each written once: a recipe that has a parameter of one of these dataclasses has
all of its settings.  `Meeting`, which all recipes of rounds have, is with the rounds.
"""

from dataclasses import dataclass
from typing import Annotated, Literal

from atoll.codecs import CODECS, Codec, parse_codec, write_codec
from atoll.collectives import COLLECTIVES
from atoll.collectives.reduce import Coded, Plain, Reduction
from atoll.collectives.robust import Robust
from atoll.settings import NumberRange, OneOf, Read
from atoll.strategies.parts.ahead import Ahead, OwnSteps, SharedSteps
from atoll.strategies.parts.merge import ByWork, Mean, Weight
from atoll.strategies.parts.part import Part, part
from atoll.strategies.parts.when import Every, Paced, When

__all__ = ["Carried", "Encoded", "Late", "Means", "Momentum", "Pacing", "Seconds", "Share"]

Share = Annotated[float, NumberRange(0, 1)]
Momentum = Annotated[float, NumberRange(0, 0.999)]
Seconds = Annotated[float, NumberRange(0.1)]
Encoded = Annotated[Codec | None, Read(parse_codec, "a codec: " + ", ".join(CODECS), write_codec)]


@dataclass(frozen=True, kw_only=True, slots=True)
class Carried:
    """Which collective carries a round."""

    via: Annotated[str, OneOf(lambda: ("auto", *COLLECTIVES, "best"))] = "auto"


@dataclass(frozen=True, kw_only=True, slots=True)
class Late:
    """What a node that continued to train adds to a late mean."""

    ahead: Literal["own", "shared", "nothing"] = "own"

    @property
    def part(self) -> Part[Ahead]:
        return (
            part(OwnSteps) if self.ahead == "own" else part(SharedSteps, reach=1.0 if self.ahead == "shared" else 0.0)
        )


@dataclass(frozen=True, kw_only=True, slots=True)
class Means:
    """How models are averaged."""

    merge: Literal["mean", "work"] = "mean"
    codec: Encoded = None
    robust: Literal["no", "median", "trimmed", "clipped"] = "no"

    @property
    def weight(self) -> Weight:
        return ByWork() if self.merge == "work" else Mean()

    @property
    def reduction(self) -> Part[Reduction]:
        if self.robust != "no":
            return part(Robust, self.robust, self.codec)
        return part(Coded, self.codec) if self.codec else part(Plain)


@dataclass(frozen=True, kw_only=True, slots=True)
class Pacing:
    """Whether fast nodes do more steps instead of waiting for the slowest."""

    paced: bool = False

    def every(self, steps: int) -> Part[When]:
        return Part(Paced if self.paced else Every, (steps,))
