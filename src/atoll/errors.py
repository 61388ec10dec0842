"""The exceptions that Atoll raises on purpose.

::

    AtollError
    ├── UserError            the request cannot be carried out; the command line prints the reason and exits with 2
    │   ├── ConfigError      a run's configuration, its file, key or value
    │   ├── NetworkError     a network's name, file, key or value
    │   ├── StrategyError    a strategy's name, setting or value
    │   ├── TaskError        a task's name, data or shards
    │   ├── FaultError       a fault script's file, key or value
    │   ├── CheckpointError  a checkpoint that cannot be used
    │   ├── EmulationError   a requirement of emulation is missing
    │   ├── InvitationError  an invitation that cannot be used
    │   ├── MissingExtra     an optional package is not installed
    │   └── TraceError       a trace file that cannot be read
    ├── FrameError           a peer sent invalid data
    ├── ExamplesRefused      the examples that a peer lent are unusable
    ├── UnknownPeer          a node program named a peer that the world does not have
    └── Stalled              a simulation in which nothing can happen any more

A message names the mistake, its place, and the remedy.  A broken invariant inside Atoll is an `AssertionError`.
"""

import contextlib
import difflib
from collections.abc import Iterable, Iterator

__all__ = [
    "AtollError",
    "CheckpointError",
    "ConfigError",
    "EmulationError",
    "ExamplesRefused",
    "FaultError",
    "FrameError",
    "InvitationError",
    "MissingExtra",
    "NetworkError",
    "Stalled",
    "StrategyError",
    "TaskError",
    "TraceError",
    "UnknownPeer",
    "UserError",
    "nearest",
    "needs_extra",
]


class AtollError(Exception):
    """The base class of all Atoll exceptions."""


class UserError(AtollError):
    """The request cannot be carried out as written."""


class ConfigError(UserError):
    """A run's configuration, its file, key or value, is wrong."""


class NetworkError(UserError):
    """A network's name, file, key or value is wrong."""


class StrategyError(UserError):
    """A strategy's name, setting or value is wrong."""


class PluginError(UserError):
    """A plugin cannot be imported."""


class TaskError(UserError):
    """A task's name, data or shards are wrong."""


class FaultError(UserError):
    """A fault script's file, key or value is wrong."""


class CheckpointError(UserError):
    """A checkpoint that cannot be used, and why."""


class TraceError(UserError):
    """A trace file cannot be read."""


class InvitationError(UserError):
    """An invitation that cannot be used, and why."""


class MissingExtra(UserError):
    """An optional package is not installed; the message says how to install it."""


class EmulationError(UserError):
    """A requirement of emulation is missing or not permitted; the message gives the remedy."""


class FrameError(AtollError):
    """A peer sent invalid data; the message gives the reason.  The connection is dropped."""


class ExamplesRefused(AtollError):
    """The examples that a peer lent are unusable; the message gives the reason."""


class UnknownPeer(AtollError):
    """A node program named a peer that the world does not have."""


class Stalled(AtollError):
    """A deadlock of a simulation; the message shows what each node waits for."""


def nearest(wrong: str, valid: Iterable[str]) -> str:
    """Returns the end of an error message: the valid name most similar to the wrong one, or all valid names.

    >>> nearest("trianlge", ["nine", "triangle"])
    "did you mean 'triangle'?"
    >>> nearest("x", ["nine", "triangle"])
    'choose from: nine, triangle'
    """
    names = list(valid)
    close = difflib.get_close_matches(wrong, names, n=1)
    if close:
        return f"did you mean {close[0]!r}?"
    return "choose from: " + ", ".join(names)


@contextlib.contextmanager
def needs_extra(extra: str, what: str) -> Iterator[None]:
    """Wraps imports of optional packages: if one is missing, the error names the command that installs it.

    >>> with needs_extra("report", "the report page"):
    ...     import no_such_package
    Traceback (most recent call last):
    ...
    atoll.errors.MissingExtra: the report page needs: pip install 'atoll[report]' (No module named 'no_such_package')
    """
    try:
        yield
    except ImportError as error:
        if (error.name or "").partition(".")[0] == "atoll":
            raise  # a bug in Atoll
        raise MissingExtra(f"{what} needs: pip install 'atoll[{extra}]' ({error})") from None
