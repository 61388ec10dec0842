import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.utils.data import (
    BatchSampler,
    DataLoader,
    Dataset,
    IterableDataset,
    SequentialSampler,
    TensorDataset,
    WeightedRandomSampler,
)

from atoll.errors import TaskError
from atoll.script.loader import Present, Shard


def numbers(count: int) -> TensorDataset:
    return TensorDataset(torch.arange(count))


def shard_of(rank: int, count: int, loader: object, **settings: int) -> Shard:
    return Shard(loader, lambda: Present(rank, count), **settings)  # type: ignore[arg-type]


@given(st.integers(1, 60), st.integers(1, 5), st.integers(1, 9), st.booleans())
def test_all_nodes_together_have_everything_once(examples: int, nodes: int, batch: int, shuffle: bool) -> None:  # noqa: FBT001
    loader = DataLoader(numbers(examples), batch_size=batch, shuffle=shuffle)
    taken = [torch.cat([x for (x,) in shard_of(rank, nodes, loader)] or [torch.zeros(0)]) for rank in range(nodes)]
    assert sorted(torch.cat(taken).int().tolist()) == list(range(examples))
    assert max(map(len, taken)) - min(map(len, taken)) <= 1


@given(st.integers(1, 60), st.integers(1, 5), st.integers(1, 9), st.sampled_from(["loader", "batches", "list"]))
def test_the_processes_of_a_node_get_equally_many_batches(examples: int, count: int, batch: int, what: str) -> None:
    """Else those with more would wait for the others for ever."""
    plain = DataLoader(numbers(examples), batch_size=batch)
    own = BatchSampler(SequentialSampler(range(examples)), batch, drop_last=False)
    data = {"loader": plain, "batches": DataLoader(numbers(examples), batch_sampler=own), "list": list(range(examples))}
    shards = [Shard(data[what], lambda rank=rank: Present(rank, count), even=True) for rank in range(count)]  # type: ignore[misc]
    assert len({len(list(shard)) for shard in shards}) == 1


@given(st.integers(1, 60), st.integers(1, 4), st.integers(1, 9))
def test_batches_that_are_not_full_are_dropped(examples: int, nodes: int, batch: int) -> None:
    loader = DataLoader(numbers(examples), batch_size=batch, drop_last=True)
    counts = [[len(x) for (x,) in shard_of(rank, nodes, loader)] for rank in range(nodes)]
    assert all(count == [batch] * (examples // (batch * nodes)) for count in counts)


def test_every_epoch_is_another_order_and_the_same_on_all_nodes() -> None:
    loader = DataLoader(numbers(20), batch_size=5, shuffle=True)
    one, other = shard_of(0, 1, loader, seed=3), shard_of(0, 1, loader, seed=3)
    first = [x.tolist() for (x,) in one]
    assert first == [x.tolist() for (x,) in other]
    assert first != [x.tolist() for (x,) in one]


def test_who_leaves_is_noticed_at_the_next_batch() -> None:
    """From then on the others take what would have been its."""
    present = [Present(0, 2), Present(1, 2)]
    loader = DataLoader(numbers(40), batch_size=4)
    shards = [Shard(loader, lambda place=place: present[place]) for place in range(2)]  # type: ignore[misc]
    first, second = (iter(shard) for shard in shards)
    taken = [int(value) for _ in range(2) for iterator in (first, second) for value in next(iterator)[0]]
    present[0] = Present(0, 1)
    taken += [int(value) for (x,) in first for value in x]
    assert sorted(taken) == list(range(40))


def test_it_goes_on_where_it_was() -> None:
    loader = DataLoader(numbers(30), batch_size=4, shuffle=True, num_workers=1)  # which runs ahead
    shard = shard_of(1, 2, loader, seed=5)
    list(shard)
    whole = [x.tolist() for (x,) in shard_of(1, 2, loader, seed=5)]
    iterator = iter(shard)
    some = [next(iterator)[0].tolist() for _ in range(2)]
    saved = shard.save()
    assert saved[0] == 1
    again = shard_of(1, 2, loader, seed=5)
    again.load(saved)
    rest = [x.tolist() for (x,) in again]
    assert some + rest != whole, "another epoch"
    assert some + rest == [*some, *[x.tolist() for (x,) in iterator]]


def test_examples_are_counted_and_batches_scaled() -> None:
    counts: list[int] = []
    loader = DataLoader(numbers(24), batch_size=4)
    shard = Shard(loader, lambda: Present(0, 2), factor=lambda: 1.5, taken=counts.append)
    assert [len(x) for (x,) in shard] == counts == [6, 6]


class Stream(IterableDataset[int]):
    def __iter__(self):  # type: ignore[no-untyped-def]
        yield from range(10)


class Unsized(Dataset[int]):
    def __getitem__(self, place: int) -> int:
        return place


def test_what_is_no_plain_loader() -> None:
    """Own samplers, batches, streams, datasets, lists: turns are taken."""
    batches = BatchSampler(SequentialSampler(range(12)), 3, drop_last=False)
    assert [x.tolist() for (x,) in shard_of(1, 2, DataLoader(numbers(12), batch_sampler=batches))] == [
        [3, 4, 5],
        [9, 10, 11],
    ]
    weighted = DataLoader(numbers(12), batch_size=3, sampler=WeightedRandomSampler([1.0] * 12, 12))
    assert len(list(shard_of(0, 2, weighted))) == 2
    assert list(shard_of(1, 3, Stream())) == [1, 4, 7]
    assert [x.tolist() for x in shard_of(1, 2, DataLoader(Stream(), batch_size=2))] == [[2, 3], [6, 7]]
    assert [int(x) for (x,) in shard_of(0, 4, numbers(8))] == [0, 4]
    assert list(shard_of(2, 3, ["a", "b", "c", "d", "e", "f"])) == ["c", "f"]
    assert len(shard_of(0, 4, DataLoader(numbers(9), batch_size=1))) == 3
    with pytest.raises(TaskError, match="without batches"):
        shard_of(0, 2, DataLoader(numbers(4), batch_size=None))
    with pytest.raises(TaskError, match="no length"):
        list(shard_of(0, 2, Unsized()))
    assert np.all([shard.save() == [] for shard in (shard_of(0, 2, ["a"]),)])
