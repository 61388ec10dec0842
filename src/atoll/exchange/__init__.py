"""How vectors are combined between nodes: collectives in which everybody takes part."""

from atoll.exchange.collectives import COLLECTIVES, Collective, broadcast
from atoll.exchange.round import Body, Round, SendLog, Spawn, Vector

__all__ = ["COLLECTIVES", "Body", "Collective", "Round", "SendLog", "Spawn", "Vector", "broadcast"]
