"""How vectors are combined between nodes: collectives in which everybody takes part."""

from atoll.exchange.collectives import COLLECTIVES, Collective, broadcast
from atoll.exchange.judge import Judge, Lengths, Trailer
from atoll.exchange.round import Body, Round, SendLog, Spawn
from atoll.exchange.vectors import Vector

__all__ = [
    "COLLECTIVES",
    "Body",
    "Collective",
    "Judge",
    "Lengths",
    "Round",
    "SendLog",
    "Spawn",
    "Trailer",
    "Vector",
    "broadcast",
]
