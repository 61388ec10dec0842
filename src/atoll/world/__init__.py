"""Where nodes live: worlds give a node time, randomness, computing and peers."""

from atoll.world.base import Lane, Message, Peer, World
from atoll.world.sim.physics import IDEAL, Physics
from atoll.world.sim.simulation import Simulation

__all__ = ["IDEAL", "Lane", "Message", "Peer", "Physics", "Simulation", "World"]
