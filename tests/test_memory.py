"""VectorMemory is used again, and never while somebody still sees it."""

import gc

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from atoll.memory import LEAST_BYTES, VectorMemory

LEAST = LEAST_BYTES // 4  # a whole number of steps


def test_memory_is_used_again_once_nobody_sees_it() -> None:
    memory = VectorMemory()
    first = memory.empty(LEAST)
    place, view = first.ctypes.data, first[5:10][1:]
    del first
    assert memory.empty(LEAST).ctypes.data != place, "a view of a view still refers to it"
    del view
    gc.collect()
    found = {each.ctypes.data for each in [memory.empty(LEAST) for _ in range(3)]}
    assert place in found


def test_small_vectors_and_too_much_are_left_to_the_system() -> None:
    memory = VectorMemory(kept_bytes=3 * LEAST_BYTES)
    memory.empty(10)
    assert memory.free_bytes == 0
    vectors = [memory.empty(LEAST) for _ in range(10)]
    assert memory.free_bytes == 0
    vectors.clear()
    assert memory.free_bytes == 3 * LEAST_BYTES


@given(st.lists(st.tuples(st.integers(0, 3), st.integers(0, 2)), max_size=40))
def test_no_two_vectors_share_memory(steps: list[tuple[int, int]]) -> None:
    memory = VectorMemory()
    held: dict[int, tuple[np.ndarray[tuple[int], np.dtype[np.float32]], float]] = {}
    for number, (place, kind) in enumerate(steps):
        if kind == 2:
            held.pop(place, None)
        else:
            vector = memory.empty(LEAST + kind)
            vector[:] = number
            held[place] = vector[kind:], float(number)
        for values, value in held.values():
            assert (values == value).all()
