"""Reusable memory for large vectors.

The system allocates fresh memory page by page, and zeroes each page first: for a vector of a few megabytes this takes
longer than summing it.  The memory of vectors without references is kept here for the next vectors of the same size.

Each vector is a mapping of its own.  So memory that is not kept returns to the system at once, whatever lies around it:
a heap that many threads share grows to a multiple of what is in use.
"""

import contextlib
import itertools
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
HUGE_BYTES = 2 << 20
_PRIVATE = {"flags": mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS} if hasattr(mmap, "MAP_ANONYMOUS") else {}


class VectorMemory:
    """Allocates vectors; when a vector and all its views are deleted, its memory is reused.

    Used and free memory together are never more than the most that was in use at one time: a round of exchanges needs
    as much as the one before it, and what training needs meanwhile is not taken from it.
    """

    def __init__(self) -> None:
        self._free: defaultdict[int, list[memoryview]] = defaultdict(list)
        self._used: dict[int, int] = {}
        """Bytes of the vectors in use, by an arbitrary number: a dictionary is safe between threads."""
        self._numbers = itertools.count()
        self.most_bytes = 0
        """The most that was in use at one time."""

    @property
    def used_bytes(self) -> int:
        return sum(list(self._used.values()))

    @property
    def free_bytes(self) -> int:
        return sum(size * len(free) for size, free in list(self._free.items()))

    def empty_bytes(self, size: int) -> NDArray[np.uint8]:
        """Returns uninitialised bytes.

        Raises:
            MemoryError: the system has no room for so many.
        """
        if size < LEAST_BYTES:
            return np.empty(size, dtype=np.uint8)
        room = -(-size // STEP_BYTES) * STEP_BYTES
        number = next(self._numbers)
        try:
            raw = self._free[room].pop()
        except IndexError:
            raw = _mapped(room)
            self.most_bytes = max(self.most_bytes, self.used_bytes + room)
            self._forget_beyond(self.most_bytes - room)
        self._used[number] = room
        # Views of the array refer to the array, since that does not own its memory: it lives as long as they do.
        array = np.frombuffer(raw, dtype=np.uint8, count=size)
        weakref.finalize(array, self._give_back, number, raw).atexit = False
        return array

    def _give_back(self, number: int, raw: memoryview) -> None:
        self._free[len(raw)].append(raw)
        self._used.pop(number, None)

    def _forget_beyond(self, most: int) -> None:
        """Returns free memory of other sizes to the system."""
        beyond = self.used_bytes + self.free_bytes - most
        for size in sorted(self._free.copy(), reverse=True):
            while beyond > 0:
                try:
                    self._free[size].pop()
                except IndexError:
                    break
                beyond -= size


def _mapped(size: int) -> memoryview:
    """A mapping of its own; in huge pages, where the system has them, its first use takes a fraction of the time."""
    try:
        mapping = mmap.mmap(-1, size, **_PRIVATE)
    except (OSError, OverflowError) as error:
        raise MemoryError(f"no memory for {size} bytes ({error})") from None
    if size >= HUGE_BYTES and hasattr(mmap, "MADV_HUGEPAGE"):
        with contextlib.suppress(OSError):
            mapping.madvise(mmap.MADV_HUGEPAGE)
    return memoryview(mapping)


_memory = VectorMemory()
empty_bytes = _memory.empty_bytes
"""Returns uninitialised bytes from this process's memory."""
