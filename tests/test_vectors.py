import numpy as np
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from atoll.vectors import all_finite, digest

FLOATS = arrays(np.float32, st.integers(0, 20), elements=st.floats(width=32))


@given(FLOATS)
def test_all_finite(values: np.ndarray) -> None:
    assert all_finite(values) == np.isfinite(values).all()


def test_values_whose_squares_are_too_large_are_finite() -> None:
    assert all_finite(np.full(9, 3e38, dtype=np.float32))


@given(FLOATS, FLOATS)
def test_digests_differ_where_vectors_do(one: np.ndarray, other: np.ndarray) -> None:
    assert (digest(one) == digest(other)) == (one.tobytes() == other.tobytes())
    assert digest(np.repeat(one, 2)[::2]) == digest(one)
    assert digest(None) == ""
