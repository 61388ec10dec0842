"""What parts put into a checkpoint: named arrays, in files or between processes; no code travels with them."""

import json
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

__all__ = ["Saved", "note", "read_note", "section", "under"]

Saved: TypeAlias = dict[str, NDArray[Any]]


def note(fact: Any) -> NDArray[np.uint8]:
    """A fact that JSON has, as an array.

    >>> read_note(note({"steps": 3}))
    {'steps': 3}
    """
    return np.frombuffer(json.dumps(fact).encode(), dtype=np.uint8)


def read_note(array: NDArray[Any]) -> Any:
    return json.loads(array.tobytes())


def under(name: str, saved: Saved) -> Saved:
    """A part's arrays as arrays of the whole."""
    return {f"{name}/{key}": value for key, value in saved.items()}


def section(name: str, saved: Saved) -> Saved:
    """The arrays that `under` has named."""
    return {key.removeprefix(f"{name}/"): value for key, value in saved.items() if key.startswith(f"{name}/")}
