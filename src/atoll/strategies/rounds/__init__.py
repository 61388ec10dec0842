"""Rounds: all members, or some of them, average their models or gradients."""

from atoll.strategies.rounds.composition import Meeting
from atoll.strategies.rounds.rounds import Rounds

__all__ = ["Meeting", "Rounds"]
