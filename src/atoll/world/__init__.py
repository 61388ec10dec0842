"""Worlds: a node's interface to time, randomness, computation and peers."""

from atoll.world.base import Lane, Message, Peer, World
from atoll.world.sim.physics import IDEAL, Physics
from atoll.world.sim.simulation import Simulation

__all__ = ["IDEAL", "Lane", "Message", "Peer", "Physics", "Simulation", "World"]
