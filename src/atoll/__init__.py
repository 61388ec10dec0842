"""Atoll trains PyTorch models across machines joined by unreliable networks."""

import importlib
from typing import TYPE_CHECKING, Any

from atoll.errors import (
    AtollError,
    CheckpointError,
    EmulationError,
    FaultError,
    InvitationError,
    MissingExtra,
    NetworkError,
    PluginError,
    Stalled,
    StrategyError,
    TaskError,
    TraceError,
    UnknownPeer,
    UserError,
)
from atoll.network import Network, load_network
from atoll.trace import Trace, read_trace
from atoll.version import VERSION as __version__  # noqa: N811 - the usual name
from atoll.world import Lane, Message, Peer, Physics, Simulation, World

if TYPE_CHECKING:
    from atoll.compare import Simulated, simulate
    from atoll.script import Run, join
    from atoll.training import Examples, Task

__all__ = [
    "AtollError",
    "CheckpointError",
    "EmulationError",
    "Examples",
    "FaultError",
    "InvitationError",
    "Lane",
    "Message",
    "MissingExtra",
    "Network",
    "NetworkError",
    "Peer",
    "Physics",
    "PluginError",
    "Run",
    "Simulated",
    "Simulation",
    "Stalled",
    "StrategyError",
    "Task",
    "TaskError",
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


_NEEDS_TORCH = {
    "Examples": "atoll.training",
    "Run": "atoll.script",
    "Simulated": "atoll.compare",
    "Task": "atoll.training",
    "join": "atoll.script",
    "simulate": "atoll.compare",
}


def __getattr__(name: str) -> Any:
    """Loads names that need torch on first use."""
    if name in _NEEDS_TORCH:
        return getattr(importlib.import_module(_NEEDS_TORCH[name]), name)
    raise AttributeError(f"module 'atoll' has no attribute {name!r}")


def __dir__() -> list[str]:
    """Lists names that are not loaded yet too, for completion."""
    return sorted({*globals(), *__all__})
