import math

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from atoll.vectors import (
    SLAB,
    Change,
    all_finite,
    bytes_of,
    common_length,
    digest,
    length,
    lengths,
    of_array,
    of_bytes,
    sealed,
)

FLOATS = arrays(np.float32, st.integers(0, 20), elements=st.floats(width=32))


@given(FLOATS)
def test_all_finite(values: np.ndarray) -> None:
    assert all_finite(of_array(values)) == np.isfinite(values).all()


def test_values_whose_squares_are_too_large_are_finite() -> None:
    assert all_finite(torch.full((9,), 3e38))


@given(arrays(np.float32, st.integers(0, 40), elements=st.floats(-(2.0**60), 2.0**60, width=32)))
def test_common_lengths(values: np.ndarray) -> None:
    assert common_length(of_array(values)) == pytest.approx(float(np.linalg.norm(values.astype(float))))


def test_common_lengths_do_not_depend_on_threads() -> None:
    values = torch.randn(3 * SLAB + 7)
    found = set()
    try:
        for threads in (1, 2):
            torch.set_num_threads(threads)
            found.add(common_length(values))
    finally:
        torch.set_num_threads(1)
    assert len(found) == 1
    assert common_length(torch.tensor([1.0, math.nan])) == common_length(torch.tensor([math.inf])) == math.inf


@given(FLOATS, FLOATS)
def test_digests_differ_where_vectors_do(one: np.ndarray, other: np.ndarray) -> None:
    assert (digest(of_array(one)) == digest(of_array(other))) == (one.tobytes() == other.tobytes())
    assert digest(of_array(np.repeat(one, 2))[::2]) == digest(of_array(one))
    assert digest(None) == ""


def test_a_change_of_one_bit_changes_a_digest() -> None:
    values = torch.randn(2 * SLAB + 100)
    before = digest(values, "5")
    for place in (0, SLAB - 1, SLAB, 2 * SLAB + 99):
        for bit in (0, 22, 31):
            changed = values.clone()
            changed.view(torch.int32)[place] ^= -(1 << 31) if bit == 31 else 1 << bit
            assert digest(changed, "5") != before
    swapped = values.clone()
    swapped[:2] = values[:2].flip(0)
    assert digest(swapped, "5") != before
    assert digest(values, "6") != before
    assert digest(values.bfloat16()) != digest(values)


@given(FLOATS, st.integers(0, 3))
def test_bytes_are_read_as_they_were_written(values: np.ndarray, skip: int) -> None:
    vector = of_array(values)
    assert bytes(bytes_of(vector)) == values.tobytes()
    numbers = np.array([1, 2], dtype=np.float32)
    both = sealed(vector, numbers)
    assert bytes(both) == values.tobytes() + numbers.tobytes()
    assert both.readonly
    for data in (both, bytes(skip) + bytes(both), bytearray(both)):  # aligned or not, read-only or not
        arrived = of_bytes(memoryview(data)[len(data) - len(both) :][: values.nbytes])
        assert bytes(bytes_of(arrived)) == values.tobytes()


def test_bytes_that_are_no_vector_are_refused() -> None:
    with pytest.raises(ValueError, match="7 bytes are no whole number"):
        of_bytes(b"1234567")


@given(FLOATS.filter(lambda values: bool((abs(values) < 1e9).all())), st.floats(-3, 3, width=16))
def test_lengths_of_changes(values: np.ndarray, factor: float) -> None:
    exact = values.astype(np.float64)
    vector, origin = of_array(values), torch.ones(len(values))
    found, plain = lengths([Change(vector, factor, origin), Change(vector)])
    assert found == pytest.approx(np.linalg.norm(exact * factor - 1), rel=1e-4, abs=1e-3)
    assert plain == length(vector) == pytest.approx(np.linalg.norm(exact), rel=1e-5)
