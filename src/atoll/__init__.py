"""Atoll trains PyTorch models across machines joined by networks that nobody can trust."""

from atoll.errors import AtollError, NetworkError, Stalled, TraceError, UnknownPeer, UserError
from atoll.network import Network, load_network
from atoll.trace import Trace, read_trace
from atoll.version import VERSION as __version__  # noqa: N811 - the name that everybody looks for
from atoll.world import Lane, Message, Peer, Physics, Simulation, World

__all__ = [
    "AtollError",
    "Lane",
    "Message",
    "Network",
    "NetworkError",
    "Peer",
    "Physics",
    "Simulation",
    "Stalled",
    "Trace",
    "TraceError",
    "UnknownPeer",
    "UserError",
    "World",
    "__version__",
    "load_network",
    "read_trace",
]
