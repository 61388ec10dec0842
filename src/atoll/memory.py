"""Reusable memory for large vectors.

The system allocates fresh memory page by page, and zeroes each page first: for a vector of a few megabytes this takes
longer than summing it.  The memory of vectors without references is kept here for the next vectors of the same size.

Each vector is a mapping of its own.  So memory that is not kept returns to the system at once, whatever lies around it:
a heap that many threads share grows to a multiple of what is in use.
"""

import mmap
import weakref
from collections import defaultdict

import numpy as np
from numpy.typing import NDArray

__all__ = ["LEAST_BYTES", "VectorMemory", "empty_bytes"]

LEAST_BYTES = 1 << 18
"""The system allocates smaller vectors."""
STEP_BYTES = 1 << 16
"""Sizes are rounded up to a multiple of this, so that vectors of nearly the same size share memory."""
KEPT_BYTES = 64 << 20
"""The limit of free memory that is kept, besides one vector that is larger than this limit."""
_PRIVATE = {"flags": mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS} if hasattr(mmap, "MAP_ANONYMOUS") else {}


class VectorMemory:
    """Allocates vectors; when a vector and all its views are deleted, its memory is reused."""

    def __init__(self, kept_bytes: int = KEPT_BYTES) -> None:
        self._free: defaultdict[int, list[memoryview]] = defaultdict(list)
        self._kept_bytes = kept_bytes

    @property
    def free_bytes(self) -> int:
        return sum(size * len(free) for size, free in list(self._free.items()))

    def empty_bytes(self, size: int) -> NDArray[np.uint8]:
        """Returns uninitialised bytes."""
        if size < LEAST_BYTES:
            return np.empty(size, dtype=np.uint8)
        room = -(-size // STEP_BYTES) * STEP_BYTES
        try:
            raw = self._free[room].pop()
        except IndexError:
            raw = memoryview(mmap.mmap(-1, room, **_PRIVATE))
        # Views of the array refer to the array, since that does not own its memory: it lives as long as they do.
        array = np.frombuffer(raw, dtype=np.uint8, count=size)
        weakref.finalize(array, self._give_back, raw).atexit = False
        return array

    def _give_back(self, raw: memoryview) -> None:
        if len(raw) > self._kept_bytes:  # a whole model: the last one is kept
            for size in [size for size in list(self._free) if size > self._kept_bytes]:
                del self._free[size]
            self._free[len(raw)].append(raw)
        elif self._small_bytes + len(raw) <= self._kept_bytes:
            self._free[len(raw)].append(raw)

    @property
    def _small_bytes(self) -> int:
        return sum(size * len(free) for size, free in list(self._free.items()) if size <= self._kept_bytes)


_memory = VectorMemory()
empty_bytes = _memory.empty_bytes
"""Returns uninitialised bytes from this process's memory."""
