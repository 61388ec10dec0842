import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from atoll.training.batches import Batches, Epoch


def take(batches: Batches, count: int) -> list[list[int]]:
    return [batches.take().tolist() for _ in range(count)]


@given(st.integers(1, 60), st.integers(1, 20), st.integers(1, 4), st.integers(0, 9))
def test_an_epoch_uses_each_example_at_most_once_and_nearly_all(count: int, size: int, pieces: int, seed: int) -> None:
    pieces = min(pieces, count)
    epochs: list[Epoch] = []
    batches = Batches(np.arange(100, 100 + count), size, seed, pieces=pieces, on_epoch=epochs.append)
    seen: list[int] = []
    while len(epochs) < 3:
        before, batch = len(epochs), batches.take().tolist()
        if len(epochs) > before:
            assert len(set(seen)) == len(seen) == epochs[-1].examples
            assert len(seen) > count - pieces * size
            seen = []
        seen += batch
    assert [epoch.number for epoch in epochs] == [0, 1, 2]
    assert {epoch.of for epoch in epochs} == {count}


@given(st.integers(0, 30), st.integers(1, 3))
def test_goes_on_where_it_was(before: int, pieces: int) -> None:
    batches = Batches(np.arange(50), 8, 1, pieces=pieces)
    take(batches, before)
    other = Batches(np.arange(50), 8, 2, pieces=pieces)
    other.load(batches.save())
    assert take(other, 20) == take(batches, 20)


def test_smaller_and_larger_batches() -> None:
    assert len(Batches(np.arange(100), 32, 0).take(0.5)) == 16
    assert len(Batches(np.arange(100), 32, 0).take(1.5)) == 48
    assert len(Batches(np.arange(100), 32, 0).take(3)) == 96
    assert len(Batches(np.arange(100), 32, 0).take(0.001)) == 1
    assert len(Batches(np.arange(10), 32, 0).take()) == 10
    assert len(Batches(np.arange(10), 32, 0).take(2)) == 20
