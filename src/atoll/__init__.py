"""Atoll trains PyTorch models across machines joined by networks that nobody can trust."""

import importlib
from typing import TYPE_CHECKING, Any

from atoll.errors import AtollError, NetworkError, Stalled, TraceError, UnknownPeer, UserError
from atoll.network import Network, load_network
from atoll.trace import Trace, read_trace
from atoll.version import VERSION as __version__  # noqa: N811 - the name that everybody looks for
from atoll.world import Lane, Message, Peer, Physics, Simulation, World

if TYPE_CHECKING:
    from atoll.compare import simulate
    from atoll.script import Run, join

__all__ = [
    "AtollError",
    "Lane",
    "Message",
    "Network",
    "NetworkError",
    "Peer",
    "Physics",
    "Run",
    "Simulation",
    "Stalled",
    "Trace",
    "TraceError",
    "UnknownPeer",
    "UserError",
    "World",
    "__version__",
    "join",
    "load_network",
    "read_trace",
    "simulate",
]


_NEEDS_TORCH = {"Run": "atoll.script", "join": "atoll.script", "simulate": "atoll.compare"}


def __getattr__(name: str) -> Any:
    """What needs torch is loaded when it is asked for."""
    if name in _NEEDS_TORCH:
        return getattr(importlib.import_module(_NEEDS_TORCH[name]), name)
    raise AttributeError(f"module 'atoll' has no attribute {name!r}")
