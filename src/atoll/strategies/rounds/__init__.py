"""Rounds: all members, or some, meet to average what they have."""

from atoll.strategies.rounds.composition import Meeting
from atoll.strategies.rounds.rounds import Rounds

__all__ = ["Meeting", "Rounds"]
