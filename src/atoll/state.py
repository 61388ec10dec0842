"""The content of a checkpoint: named arrays, in files or between processes; they contain no code."""

import json
from collections.abc import Awaitable, Callable
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

__all__ = ["AtBoundary", "Save", "Saved", "note", "read_note", "section", "under"]

Saved: TypeAlias = dict[str, NDArray[Any]]
Save: TypeAlias = Callable[[], Awaitable[Saved]]
"""Returns a node's state, at a step boundary."""
AtBoundary: TypeAlias = Callable[[Save], Awaitable[None] | None]
"""Called after every step; the next one awaits the result."""


def note(fact: Any) -> NDArray[np.uint8]:
    """Encodes a JSON value as an array.

    >>> read_note(note({"steps": 3}))
    {'steps': 3}
    """
    return np.frombuffer(json.dumps(fact).encode(), dtype=np.uint8)


def read_note(array: NDArray[Any]) -> Any:
    return json.loads(array.tobytes())


def under(name: str, saved: Saved) -> Saved:
    """Adds a part's name to the names of its arrays."""
    return {f"{name}/{key}": value for key, value in saved.items()}


def section(name: str, saved: Saved) -> Saved:
    """Returns the arrays that `under` named, under their own names."""
    return {key.removeprefix(f"{name}/"): value for key, value in saved.items() if key.startswith(f"{name}/")}
