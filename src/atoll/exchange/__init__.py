"""How vectors are combined between nodes: collectives in which everybody takes part."""

from atoll.exchange.collectives import COLLECTIVES, Collective
from atoll.exchange.round import Round, Vector

__all__ = ["COLLECTIVES", "Collective", "Round", "Vector"]
