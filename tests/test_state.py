import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from atoll.state import note, read_note, section, under

FACTS = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text() | st.floats(allow_nan=False),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
)


@given(FACTS)
def test_a_fact_is_read_as_it_was_written(fact: object) -> None:
    assert read_note(note(fact)) == fact


def test_parts_of_a_whole() -> None:
    whole = {**under("a", {"x": np.zeros(1)}), **under("ab", {"x": np.ones(2)})}
    assert {name: values.tolist() for name, values in section("ab", whole).items()} == {"x": [1, 1]}
    assert {name: values.tolist() for name, values in section("a", whole).items()} == {"x": [0]}
