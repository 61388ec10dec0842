"""How vectors are combined between nodes: collectives in which everybody takes part."""

from atoll.collectives.algorithms import COLLECTIVES, Collective, broadcast
from atoll.collectives.judge import Judge, Lengths, TrailerLayout
from atoll.collectives.round import Body, Round, SendLog, Spawn

__all__ = [
    "COLLECTIVES",
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
