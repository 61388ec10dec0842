"""The strategy in which all members take part in rounds."""

from dataclasses import dataclass

from atoll.strategies.replica import Quantity, Replica
from atoll.strategies.rounds.composition import RoundParts
from atoll.strategies.rounds.gradients import GradientRounds
from atoll.strategies.rounds.models import ModelRounds
from atoll.strategies.talk import Strategy, Talk

__all__ = ["Rounds"]


@dataclass(frozen=True, kw_only=True)
class Rounds(RoundParts, Strategy):
    """Members take a snapshot, reduce it with all others, and correct their models by the result."""

    def start(self, replica: Replica) -> Talk:
        return (GradientRounds if self.quantity is Quantity.GRADIENT else ModelRounds)(replica, self)

    @property
    def uses_gradients(self) -> bool:
        return self.quantity is Quantity.GRADIENT or self.ahead().pulls
