"""Collectives combine the vectors of nodes; every member of the round takes part."""

from atoll.collectives.algorithms import COLLECTIVES, Collective, broadcast
from atoll.collectives.judge import Judge, TrailerLayout
from atoll.collectives.lengths import Lengths
from atoll.collectives.round import BlockTurn, Body, Round, SendLog, Spawn

__all__ = [
    "COLLECTIVES",
    "BlockTurn",
    "Body",
    "Collective",
    "Judge",
    "Lengths",
    "Round",
    "SendLog",
    "Spawn",
    "TrailerLayout",
    "broadcast",
]
