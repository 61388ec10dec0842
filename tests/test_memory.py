"""VectorMemory is used again, and never while somebody still sees it."""

import gc

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from atoll.memory import LEAST_BYTES, VectorMemory

LEAST = LEAST_BYTES


def test_memory_is_used_again_once_nobody_sees_it() -> None:
    memory = VectorMemory()
    first = memory.empty_bytes(LEAST)
    place, view = first.ctypes.data, first[5:10][1:]
    del first
    assert memory.empty_bytes(LEAST).ctypes.data != place, "a view of a view still refers to it"
    del view
    gc.collect()
    found = {each.ctypes.data for each in [memory.empty_bytes(LEAST) for _ in range(3)]}
    assert place in found


def test_small_vectors_are_left_to_the_system() -> None:
    memory = VectorMemory()
    memory.empty_bytes(10)
    assert memory.used_bytes == memory.free_bytes == 0


def test_used_and_free_memory_are_never_more_than_was_used_at_one_time() -> None:
    memory = VectorMemory()
    vectors = [memory.empty_bytes(LEAST) for _ in range(10)]
    vectors.clear()
    assert (memory.used_bytes, memory.free_bytes) == (0, 10 * LEAST)
    vectors = [memory.empty_bytes(2 * LEAST) for _ in range(3)]
    assert memory.used_bytes + memory.free_bytes == 10 * LEAST, "some of the smaller ones are given up"
    vectors.append(memory.empty_bytes(9 * LEAST))
    assert (memory.free_bytes, memory.most_bytes) == (0, 15 * LEAST)
    vectors.clear()
    assert memory.used_bytes + memory.free_bytes <= memory.most_bytes


def test_memory_that_there_is_not_does_not_count() -> None:
    memory = VectorMemory()
    for size in (1 << 60, 1 << 62):
        with pytest.raises(MemoryError, match="no memory for"):
            memory.empty_bytes(size)
    assert memory.used_bytes == memory.most_bytes == 0


@given(st.lists(st.tuples(st.integers(0, 3), st.integers(0, 2)), max_size=40))
def test_no_two_vectors_share_memory(steps: list[tuple[int, int]]) -> None:
    memory = VectorMemory()
    held: dict[int, tuple[np.ndarray[tuple[int], np.dtype[np.uint8]], float]] = {}
    for number, (place, kind) in enumerate(steps):
        if kind == 2:
            held.pop(place, None)
        else:
            vector = memory.empty_bytes(LEAST + kind)
            vector[:] = number
            held[place] = vector[kind:], float(number)
        for values, value in held.values():
            assert (values == value).all()
